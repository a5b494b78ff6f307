"""Commands that query one job: explain, wait, events."""

import time
from urllib.parse import urlencode

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.options import DURATION, Session, client_options
from corvo.limits import END_WAIT_MAX_S

ENDED = ("completed", "dead", "cancelled")
_HOLDER_HEADS = ["JOB", "WORKER", "STARTED", "LEASE ENDS"]


class Holder(msgspec.Struct):
    """A job that blocks another job."""

    job_id: str
    worker_id: str = ""
    started_at: str = ""
    lease_expires_at: str = ""


class Finding(msgspec.Struct):
    """One reason in an explanation."""

    code: str
    message: str
    next: str = ""
    holders: list[Holder] = []


class Explanation(msgspec.Struct):
    """The fields of an explanation that are shown."""

    queue: str
    state: str
    reasons: list[Finding] = []


class Job(msgspec.Struct):
    """The fields of a job that `wait` reads."""

    id: str
    state: str
    result: msgspec.Raw = msgspec.Raw()
    errors: list[dict[str, object]] = []


class Event(msgspec.Struct):
    """One event of a job."""

    type: str
    created_at: str
    data: msgspec.Raw = msgspec.Raw()


class Events(msgspec.Struct):
    """A page of the events of a job."""

    events: list[msgspec.Raw] = []
    before: int = 0
    trimmed: bool = False


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@client_options
def explain(session: Session, job_id: str) -> None:
    """Explain why a job is not running.

    The most important reason comes first."""
    answer = session.client.get(f"/api/v1/jobs/{segment(job_id)}/explain")
    found = session.decode(answer, Explanation)
    if session.as_json:
        session.show(answer)
        return
    display.lines(f"Job {job_id} is {found.state} in queue {found.queue}.")
    for reason in found.reasons:
        display.lines(f"- {reason.message}")
        if reason.next:
            display.lines(f"  -> {reason.next}")
        if reason.holders:
            rows = [
                [row.job_id, row.worker_id, row.started_at, row.lease_expires_at]
                for row in reason.holders
            ]
            display.table(_HOLDER_HEADS, rows, shrinkable=[0, 1])


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--for", "length", type=DURATION, help="Maximum time to wait.  [default: unlimited]")
@client_options
def wait(session: Session, job_id: str, length: float | None) -> None:
    """Wait until a job has ended, and print its result.

    The exit status is 0 when the job completed, and 1 when it is dead, cancelled or not finished in
    time."""
    deadline = None if length is None else time.monotonic() + length
    while True:
        left = END_WAIT_MAX_S if deadline is None else max(0, deadline - time.monotonic())
        seconds = min(left, END_WAIT_MAX_S)
        path = f"/api/v1/jobs/{segment(job_id)}/wait?timeout={seconds:.3f}"
        answer = session.client.get(path, seconds)
        job = session.decode(answer, Job)
        ended = job.state in ENDED
        if ended or (deadline is not None and time.monotonic() >= deadline):
            break
    if session.as_json:
        session.show(answer)
    elif bytes(job.result) and job.state == "completed":
        click.echo(display.json_text(bytes(job.result)))
    if job.state == "completed":
        return
    last = f": {job.errors[-1]['error']}" if ended and job.errors else ""
    outcome = f"is {job.state}{last}" if ended else f"has not ended yet (state: {job.state})"
    raise click.ClickException(f"job {job_id} {outcome}")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option(
    "--limit", type=click.IntRange(min=1), help="Maximum number of events; the newest are kept."
)
@client_options
def events(session: Session, job_id: str, limit: int | None) -> None:
    """List the events of a job, the oldest first."""
    raws: list[msgspec.Raw] = []
    before = 0
    trimmed = False
    while limit is None or len(raws) < limit:
        size = min(200, limit - len(raws)) if limit is not None else 200
        query = urlencode({"limit": size} | ({"before": before} if before else {}))
        answer = session.client.get(f"/api/v1/jobs/{segment(job_id)}/events?{query}")
        page = session.decode(answer, Events)
        raws = page.events + raws
        before, trimmed = page.before, page.trimmed
        if not before:
            break
    if session.as_json:
        session.show(b'{"events":[%b]}' % b",".join(map(bytes, raws)))
        return
    found = [session.decode(bytes(raw), Event) for raw in raws]
    rows = [[row.created_at, row.type, bytes(row.data).decode()] for row in found]
    display.table(["TIME", "EVENT", "DATA"], rows, shrinkable=[2])
    if trimmed:
        display.lines(
            "Older events were trimmed; the events that the job record implies are shown."
        )
