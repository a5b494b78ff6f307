"""Commands that act as a worker: fetch, heartbeat, ack, fail, release."""

import functools
import shlex
import socket
from pathlib import Path

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import Client, segment
from corvo.cli.options import DEFAULT_SERVER, DURATION, JSON, Session, client_options
from corvo.limits import FETCH_BATCH_MAX, FETCH_WAIT_DEFAULT_S


class Job(msgspec.Struct):
    """A delivered job."""

    job_id: str
    queue: str
    payload: msgspec.Raw
    attempt: int
    max_retries: int
    lease_duration: float
    lease_token: str
    fencing: int | None = None
    checkpoint: msgspec.Raw = msgspec.Raw(b"")
    tags: msgspec.Raw = msgspec.Raw(b"")


class Jobs(msgspec.Struct):
    """Response to a batch fetch."""

    jobs: list[Job]


class Acked(msgspec.Struct):
    """Response to an ack."""

    state: str = "completed"


class Refused(msgspec.Struct):
    """A rejected ack of a batch."""

    job_id: str
    error: str


class AckedMany(msgspec.Struct):
    """Response to a batch ack."""

    acked: int
    failed: list[Refused] = []


class Beat(msgspec.Struct):
    """Status of one job in the response to a heartbeat."""

    status: str


class Beats(msgspec.Struct):
    """Response to a heartbeat."""

    jobs: dict[str, Beat]


class Failed(msgspec.Struct):
    """Response to a fail."""

    status: str
    attempts_remaining: int = 0
    next_attempt_at: str | None = None


token_option = click.option("--token", metavar="TOKEN", help="Lease token printed by fetch.")


@click.command()
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@click.option(
    "--timeout",
    type=DURATION,
    default=f"{FETCH_WAIT_DEFAULT_S}s",
    show_default=True,
    help="How long to wait for a job; 0 does not wait.",
)
@click.option(
    "--lease-duration",
    type=DURATION,
    help="Duration of the lease.  [server's default: 60s]",
)
@click.option("--worker-id", metavar="NAME", help="Id of the worker.  [default: cli-<host>]")
@click.option(
    "--count",
    type=click.IntRange(1, FETCH_BATCH_MAX),
    metavar="N",
    default=1,
    show_default=True,
    help=f"Maximum number of jobs to fetch, up to {FETCH_BATCH_MAX}.",
)
@functools.partial(client_options, with_timeout=False)
def fetch(
    session: Session,
    queues: tuple[str, ...],
    timeout: float,
    lease_duration: float | None,
    worker_id: str | None,
    count: int,
) -> None:
    """Fetch the next job of the given queues.

    Prints the job, and the commands to ack or fail it."""
    host = socket.gethostname()
    body: dict[str, object] = {
        "queues": queues,
        "worker_id": worker_id or f"cli-{host}",
        "hostname": host,
        "timeout": timeout,
    }
    if lease_duration is not None:
        body["lease_duration"] = lease_duration
    if count == 1:
        answer = session.client.post("/api/v1/fetch", body, wait_s=timeout)
        jobs = [session.decode(answer, Job)] if answer else []
    else:
        answer = session.client.post("/api/v1/fetch/batch", {**body, "count": count}, timeout)
        jobs = session.decode(answer, Jobs).jobs
    if session.as_json or not jobs:
        session.show(answer, "No job")
        return
    for number, job in enumerate(jobs):
        display.lines(*[""] * (number > 0), *_describe(job, session.client))


def _describe(job: Job, client: Client) -> list[str]:
    """Describe a job, with shell commands to ack or fail it."""
    server = client.server
    where = "" if server == DEFAULT_SERVER else f" --server {shlex.quote(server)}"
    if client.ca_file is not None:
        where += f" --cacert {shlex.quote(client.ca_file)}"
    lease = f" {shlex.quote(job.job_id)} --token {shlex.quote(job.lease_token)}{where}"
    lines = [
        f"Job:         {job.job_id}",
        f"Queue:       {job.queue}",
        f"Attempt:     {job.attempt} of {job.max_retries}",
        f"Lease:       {job.lease_duration:g} s",
    ]
    if job.fencing is not None:
        lines.append(f"Fencing:     {job.fencing}")
    for label, raw in (("Tags:", job.tags), ("Checkpoint:", job.checkpoint)):
        if bytes(raw) not in (b"", b"null"):
            lines.append(f"{label:12} {bytes(raw).decode()}")
    payload = display.json_text(bytes(job.payload)).split("\n")
    return [
        *lines,
        "Payload:",
        *(f"  {line}" for line in payload),
        "",
        f"Done?    corvo ack{lease}",
        f"Failed?  corvo fail{lease} --error 'what went wrong'",
    ]


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@token_option
@click.option("--progress", type=JSON, help="Progress of the job (JSON, - or @FILE).")
@click.option("--checkpoint", type=JSON, help="Checkpoint for the next run (JSON, - or @FILE).")
@client_options
def heartbeat(session: Session, job_id: str, token: str | None, **options: object) -> None:
    """Extend the lease of a fetched job, and print whether to continue."""
    body = {"jobs": {job_id: _given(lease_token=token, **options)}}
    answer = session.client.post("/api/v1/heartbeat", body)
    session.show(answer, f"Job {job_id}: {session.decode(answer, Beats).jobs[job_id].status}")


@click.command()
@click.argument("job_ids", metavar="JOB-ID...", nargs=-1, required=True)
@token_option
@click.option("--result", type=JSON, help="Result of the job (JSON, - or @FILE).")
@click.option("--checkpoint", type=JSON, help="Final checkpoint (JSON, - or @FILE).")
@click.option(
    "--step-status",
    type=click.Choice(["continue", "exit"]),
    help="Whether the chain of the job continues.  [server's default: continue]",
)
@click.option(
    "--exit-reason", metavar="TEXT", help="Exit reason, passed to the on_exit job of the chain."
)
@client_options
def ack(session: Session, job_ids: tuple[str, ...], token: str | None, **options: object) -> None:
    """Acknowledge fetched jobs as completed.

    --token works with a single job only."""
    if len(job_ids) == 1:
        body = _given(lease_token=token, **options)
        answer = session.client.post(f"/api/v1/ack/{segment(job_ids[0])}", body)
        session.show(answer, f"Job {job_ids[0]}: {session.decode(answer, Acked).state}")
        return
    if token is not None:
        raise click.UsageError("--token works with a single job: ack the jobs one by one")
    acks = [_given(job_id=job_id, **options) for job_id in job_ids]
    answer = session.client.post("/api/v1/ack/batch", {"acks": acks})
    many = session.decode(answer, AckedMany)
    refusals = [f"Job {refused.job_id}: {refused.error}" for refused in many.failed]
    session.show(answer, f"Acked: {many.acked} jobs", *refusals)


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@token_option
@click.option("--error", required=True, help="Error text.")
@click.option("--backtrace", help="Backtrace: text, or @FILE.")
@click.option("--no-retry", is_flag=True, help="Move the job to dead even if attempts are left.")
@click.option("--retry-after", type=DURATION, help="Retry after exactly this delay.")
@client_options
def fail(
    session: Session,
    job_id: str,
    token: str | None,
    error: str,
    backtrace: str | None,
    no_retry: bool,
    retry_after: float | None,
) -> None:
    """Report that a fetched job failed."""
    if backtrace is not None and backtrace.startswith("@"):
        try:
            backtrace = Path(backtrace[1:]).read_text("utf-8", "replace")
        except OSError as e:
            raise click.BadParameter(
                f"{backtrace[1:]}: {e.strerror}", param_hint="--backtrace"
            ) from e
    body = _given(
        lease_token=token,
        error=error,
        backtrace=backtrace,
        retry=False if no_retry else None,
        retry_after=retry_after,
    )
    answer = session.client.post(f"/api/v1/fail/{segment(job_id)}", body)
    failed = session.decode(answer, Failed)
    left = f" ({failed.attempts_remaining} left)" if failed.attempts_remaining else ""
    when = f", next attempt at {failed.next_attempt_at}{left}" if failed.next_attempt_at else ""
    session.show(answer, f"Job {job_id}: {failed.status}{when}")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@token_option
@click.option("--delay", type=DURATION, help="Delay before the next delivery.")
@click.option("--checkpoint", type=JSON, help="Checkpoint for the next run (JSON, - or @FILE).")
@client_options
def release(
    session: Session,
    job_id: str,
    token: str | None,
    delay: float | None,
    checkpoint: msgspec.Raw | None,
) -> None:
    """Return a fetched job to its queue without using an attempt."""
    body = _given(lease_token=token, delay=delay, checkpoint=checkpoint)
    answer = session.client.post(f"/api/v1/release/{segment(job_id)}", body)
    session.show(answer, f"Job {job_id} released")


def _given(**fields: object) -> dict[str, object]:
    """Drop the fields that are None."""
    return {name: value for name, value in fields.items() if value is not None}
