"""Commands that ask about a job: explain, wait, events."""

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
    """A job that is in the way of another one."""

    job_id: str
    worker_id: str = ""
    started_at: str = ""
    lease_expires_at: str = ""


class Finding(msgspec.Struct):
    """One reason of an explanation."""

    code: str
    message: str
    next: str = ""
    holders: list[Holder] = []


class Explanation(msgspec.Struct):
    """The part of an explanation that is shown."""

    queue: str
    state: str
    reasons: list[Finding] = []


class Job(msgspec.Struct):
    """The part of a job that `wait` looks at."""

    id: str
    state: str
    result: msgspec.Raw = msgspec.Raw()
    errors: list[dict[str, object]] = []


class Event(msgspec.Struct):
    """One event of a timeline."""

    type: str
    created_at: str
    data: msgspec.Raw = msgspec.Raw()


class Events(msgspec.Struct):
    """A page of a timeline."""

    events: list[msgspec.Raw] = []
    before: int = 0
    trimmed: bool = False


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@client_options
def explain(session: Session, job_id: str) -> None:
    """Say why a job is not running, or what it does instead.

    The reason that matters most comes first."""
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
            display.table(_HOLDER_HEADS, rows, giving_way=[0, 1])


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--for", "length", type=DURATION, help="Give up after so long.  [default: never]")
@client_options
def wait(session: Session, job_id: str, length: float | None) -> None:
    """Wait until a job has ended, and print its result.

    The exit status is 0 when it completed, and 1 when it is dead or cancelled, or did not end in
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
    what = f"is {job.state}{last}" if ended else f"has not ended yet, it is {job.state}"
    raise click.ClickException(f"job {job_id} {what}")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest events.")
@client_options
def events(session: Session, job_id: str, limit: int | None) -> None:
    """List what happened to a job, the oldest event first."""
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
    display.table(["TIME", "EVENT", "DATA"], rows, giving_way=[2])
    if trimmed:
        display.lines("Older events are gone; what the job itself still knows of them is shown.")
