"""Commands for the log lines of a job: logs reads them, log appends to them."""

import sys
import time
from collections.abc import Iterator
from urllib.parse import urlencode

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.inspect import ENDED, Job
from corvo.cli.options import Session, client_options
from corvo.model import LOG_LEVELS

_FOLLOW_S = 1.0


class Line(msgspec.Struct):
    """One log line."""

    seq: int
    attempt: int
    at: str
    level: str
    message: str


class Logs(msgspec.Struct):
    """A page of log lines."""

    lines: list[Line] = []
    dropped: int = 0
    has_more: bool = False


class RawLogs(msgspec.Struct):
    """A page of log lines, each as raw JSON."""

    lines: list[msgspec.Raw] = []


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--attempt", type=click.IntRange(min=1), help="Only lines of this attempt.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, help="Only lines after this sequence number."
)
@click.option("--follow", is_flag=True, help="Print new lines until the job has ended.")
@client_options
def logs(session: Session, job_id: str, attempt: int | None, after: int, follow: bool) -> None:
    """Print the log lines of a job."""
    path = f"/api/v1/jobs/{segment(job_id)}"
    query = {} if attempt is None else {"attempt": attempt}
    found: list[bytes] = []
    dropped = 0
    while True:
        ended = not follow or session.decode(session.client.get(path), Job).state in ENDED
        for answer in _pages(session, f"{path}/logs", query, after):
            page = session.decode(answer, Logs)
            dropped = page.dropped
            after = page.lines[-1].seq if page.lines else after
            if session.as_json:
                found.append(answer)
                continue
            for line in page.lines:
                display.lines(f"{line.at}  {line.attempt}  {line.level:5}  {line.message}")
            sys.stdout.flush()
        if ended:
            break
        time.sleep(_FOLLOW_S)
    if session.as_json:
        session.show(_joined(session, found, dropped))
    elif dropped:
        display.lines(f"{dropped} older lines were dropped.")


def _pages(session: Session, path: str, query: dict[str, int], after: int) -> Iterator[bytes]:
    while True:
        answer = session.client.get(f"{path}?{urlencode({**query, 'after': after})}")
        yield answer
        page = session.decode(answer, Logs)
        if not page.has_more:
            return
        after = page.lines[-1].seq


def _joined(session: Session, pages: list[bytes], dropped: int) -> bytes:
    """Join all pages into one JSON document; the lines stay unchanged."""
    lines = [bytes(line) for page in pages for line in session.decode(page, RawLogs).lines]
    return b'{"lines":[%b],"dropped":%d}' % (b",".join(lines), dropped)


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.argument("message", nargs=-1, required=True)
@click.option("--level", type=click.Choice(LOG_LEVELS), help="Level of the lines.")
@click.option("--lease-token", envvar="CORVO_LEASE_TOKEN", help="Lease token of the job.")
@client_options
def log(
    session: Session,
    job_id: str,
    message: tuple[str, ...],
    level: str | None,
    lease_token: str | None,
) -> None:
    """Append log lines to a running job, one per MESSAGE; - reads lines from standard input."""
    texts = sys.stdin.read().splitlines() if message == ("-",) else list(message)
    lines = [{"message": text} | ({"level": level} if level else {}) for text in texts]
    body: dict[str, object] = {"lines": lines}
    if lease_token:
        body["lease_token"] = lease_token
    answer = session.client.post(f"/api/v1/jobs/{segment(job_id)}/logs", body)
    session.show(answer, f"Logged {len(lines)} {'line' if len(lines) == 1 else 'lines'}")
