"""Commands for single jobs: enqueue, inspect, retry, cancel, delete."""

import click
import msgspec

from corvo.cli.api import segment
from corvo.cli.options import DURATION, JSON, START, TAGS, Session, client_options
from corvo.model import (
    BACKOFFS,
    HOLD_ACTIONS,
    ON_DEPENDENCY_FAILURE,
    PRIORITY_NAMES,
    UNIQUE_UNTIL,
)


class Enqueued(msgspec.Struct):
    """Response to an enqueue."""

    job_id: str
    status: str
    result: msgspec.Raw = msgspec.Raw()
    last_error: str = ""


class Status(msgspec.Struct):
    """Response with only a status."""

    status: str


@click.command()
@click.argument("queue")
@click.argument("payload", type=JSON)
@click.option(
    "--priority",
    type=click.Choice(PRIORITY_NAMES),
    help="Jobs of a higher priority start first.  [server's default: normal]",
)
@click.option(
    "--max-retries",
    type=int,
    metavar="RUNS",
    help="Maximum number of runs in total.  [server's default: 3]",
)
@click.option(
    "--scheduled-at",
    type=START,
    metavar="TIME",
    help="Do not run before this time: RFC 3339, a date, or a delay such as 90m.",
)
@click.option("--delay", type=DURATION, help="Do not run before this time has passed.")
@click.option(
    "--tags",
    "--tag",
    type=TAGS,
    multiple=True,
    metavar="TAGS",
    help='Tags: a=b, a=b,c=d or a JSON object such as \'{"team": "a"}\'; repeatable.',
)
@click.option(
    "--retry-backoff",
    type=click.Choice(BACKOFFS),
    help="How the retry delay grows.  [server's default: exponential]",
)
@click.option(
    "--retry-base-delay",
    type=DURATION,
    help="Delay before the first retry.  [server's default: 5s]",
)
@click.option(
    "--retry-max-delay",
    type=DURATION,
    help="Maximum retry delay.  [server's default: 10m]",
)
@click.option(
    "--retry-jitter",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Random share of each retry delay, 0 to 1.  [server's default: 0.1]",
)
@click.option("--parent-id", metavar="JOB-ID", help="Parent job; informational only.")
@click.option(
    "--unique-key", metavar="KEY", help="Create no second job while one in the queue holds it."
)
@click.option("--unique-period", type=DURATION, help="Maximum time that the key is held.")
@click.option(
    "--unique-until",
    type=click.Choice(UNIQUE_UNTIL),
    help="When the key is released.  [server's default: final]",
)
@click.option(
    "--expire-after", type=DURATION, help="Move to dead if not finished within this time."
)
@click.option("--hold-reason", metavar="REASON", help="Hold the job until it is approved.")
@click.option("--hold-timeout", type=DURATION, help="Maximum time to hold the job.")
@click.option(
    "--hold-timeout-action",
    type=click.Choice(HOLD_ACTIONS),
    help="Action when the hold times out.  [server's default: cancel]",
)
@click.option(
    "--group-key", metavar="KEY", help="Group key: FIFO order and concurrency are kept per group."
)
@click.option("--checkpoint", type=JSON, help="Initial checkpoint for the handler (JSON).")
@click.option("--result-schema", type=JSON, metavar="SCHEMA", help="JSON Schema for the results.")
@click.option(
    "--wait", type=DURATION, help="Wait for the end of the job (up to 1m) and print its result."
)
@click.option(
    "--depends-on",
    multiple=True,
    metavar="JOB-ID",
    help="Run only after this job has ended; repeatable.",
)
@click.option(
    "--on-dependency-failure",
    type=click.Choice(ON_DEPENDENCY_FAILURE),
    help="Action when a dependency fails.  [server's default: fail]",
)
@click.option(
    "--chain",
    type=JSON,
    metavar="OBJECT",
    help="Chain of follow-up jobs: steps, on_failure, on_exit.",
)
@click.option("--batch-id", metavar="BATCH-ID", help="Open batch to add the job to.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Key that makes a repeated request safe: it creates no second job.",
)
@client_options
def enqueue(
    session: Session,
    queue: str,
    payload: msgspec.Raw,
    wait: float | None,
    idempotency_key: str | None,
    tags: tuple[msgspec.Raw, ...],
    scheduled_at: str | float | None,
    **options: object,
) -> None:
    """Enqueue a job.

    PAYLOAD is JSON text; - reads standard input, @FILE a file."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if scheduled_at is not None:
        if "delay" in given:
            raise click.UsageError("give --delay or --scheduled-at, not both")
        given["scheduled_at" if isinstance(scheduled_at, str) else "delay"] = scheduled_at
    if tags:
        given["tags"] = tags[0] if len(tags) == 1 else _merged(tags)
    hold = {
        name: given.pop(option)
        for name, option in (
            ("reason", "hold_reason"),
            ("timeout", "hold_timeout"),
            ("timeout_action", "hold_timeout_action"),
        )
        if option in given
    }
    if hold:
        given["hold"] = hold
    if wait is not None:
        given["wait"] = wait
    body = {"queue": queue, "payload": payload, **given}
    answer = session.client.post("/api/v1/enqueue", body, wait or 0, key=idempotency_key)
    job = session.decode(answer, Enqueued)
    lines = [f"Job enqueued: {job.job_id} (status: {job.status})"]
    if bytes(job.result):
        lines.append(f"Result: {bytes(job.result).decode()}")
    if job.last_error:
        lines.append(f"Last error: {job.last_error}")
    session.show(answer, *lines)


def _merged(tags: tuple[msgspec.Raw, ...]) -> dict[str, msgspec.Raw]:
    """Merge the tags of several options."""
    merged: dict[str, msgspec.Raw] = {}
    for raw in tags:
        try:
            merged |= msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError as e:
            raise click.UsageError(f"--tags must be a JSON object: {e}") from None
    return merged


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@client_options
def inspect(session: Session, job_id: str) -> None:
    """Print all fields of a job as JSON."""
    session.as_json = True
    session.show(session.client.get(f"/api/v1/jobs/{segment(job_id)}"))


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@client_options
def retry(session: Session, job_id: str) -> None:
    """Run a finished, scheduled or retrying job again, from the first attempt."""
    answer = session.client.post(f"/api/v1/jobs/{segment(job_id)}/retry", {})
    session.show(answer, "Job retried")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--force", is_flag=True, help="Do not wait for the worker of an active job.")
@client_options
def cancel(session: Session, job_id: str, force: bool) -> None:
    """Cancel a job.

    If the job is active, its worker gets a cancel request; the job stays active until the worker
    acknowledges it."""
    body = {"force": True} if force else {}
    answer = session.client.post(f"/api/v1/jobs/{segment(job_id)}/cancel", body)
    session.show(answer, f"Job {job_id}: {session.decode(answer, Status).status}")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@client_options
def delete(session: Session, job_id: str) -> None:
    """Delete a job and its history."""
    answer = session.client.request("DELETE", f"/api/v1/jobs/{segment(job_id)}")
    session.show(answer, "Job deleted")
