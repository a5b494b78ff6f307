"""Commands on single jobs: enqueue, inspect, retry, cancel, delete."""

import click
import msgspec

from corvo.cli.api import segment
from corvo.cli.options import DURATION, JSON, Session, client_options
from corvo.model import (
    BACKOFFS,
    HOLD_ACTIONS,
    ON_DEPENDENCY_FAILURE,
    PRIORITY_NAMES,
    UNIQUE_UNTIL,
)


class Enqueued(msgspec.Struct):
    """Answer to an enqueue."""

    job_id: str
    status: str
    result: msgspec.Raw = msgspec.Raw()
    last_error: str = ""


class Status(msgspec.Struct):
    """Answer of the endpoints that only say what happened."""

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
    help="How often the job may run in total.  [server's default: 3]",
)
@click.option("--scheduled-at", metavar="TIME", help="Not before this time (RFC 3339).")
@click.option("--tags", type=JSON, metavar="OBJECT", help='JSON object such as \'{"team": "a"}\'.')
@click.option(
    "--retry-backoff",
    type=click.Choice(BACKOFFS),
    help="How the delay grows.  [server's default: exponential]",
)
@click.option(
    "--retry-base-delay",
    type=DURATION,
    help="First delay after a failure.  [server's default: 5s]",
)
@click.option(
    "--retry-max-delay",
    type=DURATION,
    help="Longest delay after a failure.  [server's default: 10m]",
)
@click.option(
    "--retry-jitter",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Random part of each delay, 0 to 1.  [server's default: 0.1]",
)
@click.option("--parent-id", metavar="JOB-ID", help="Job that this one belongs to (a link only).")
@click.option(
    "--unique-key", metavar="KEY", help="Make no second job while one in the queue holds this key."
)
@click.option("--unique-period", type=DURATION, help="How long the key is held at most.")
@click.option(
    "--unique-until",
    type=click.Choice(UNIQUE_UNTIL),
    help="What frees the key.  [server's default: final]",
)
@click.option("--expire-after", type=DURATION, help="Dead if it has not ended by then.")
@click.option("--hold-reason", metavar="REASON", help="Hold it: it runs when it is approved.")
@click.option("--hold-timeout", type=DURATION, help="How long to hold it at most.")
@click.option(
    "--hold-timeout-action",
    type=click.Choice(HOLD_ACTIONS),
    help="What happens when nobody decides in time.  [server's default: cancel]",
)
@click.option("--group-key", metavar="KEY", help="Group of jobs of the queue that it is one of.")
@click.option("--checkpoint", type=JSON, help="Where the handler is to start from.")
@click.option(
    "--result-schema", type=JSON, metavar="SCHEMA", help="JSON Schema that results have to meet."
)
@click.option(
    "--wait", type=DURATION, help="Wait so long for the job to end, a minute at most, and print it."
)
@click.option(
    "--depends-on",
    multiple=True,
    metavar="JOB-ID",
    help="Not before this job has ended; can be given many times.",
)
@click.option(
    "--on-dependency-failure",
    type=click.Choice(ON_DEPENDENCY_FAILURE),
    help="What becomes of the job if such a job fails.  [server's default: fail]",
)
@click.option(
    "--chain", type=JSON, metavar="OBJECT", help="Jobs that follow: steps, on_failure, on_exit."
)
@click.option("--batch-id", metavar="BATCH-ID", help="Open batch that the job joins.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Sent again with this key, the same command makes no second job.",
)
@client_options
def enqueue(
    session: Session,
    queue: str,
    payload: msgspec.Raw,
    wait: float | None,
    idempotency_key: str | None,
    **options: object,
) -> None:
    """Put a job into a queue.

    PAYLOAD is JSON text, - for standard input, or @file."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
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


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@client_options
def inspect(session: Session, job_id: str) -> None:
    """Print everything known about a job, as JSON."""
    session.as_json = True
    session.show(session.client.get(f"/api/v1/jobs/{segment(job_id)}"))


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@client_options
def retry(session: Session, job_id: str) -> None:
    """Run a job again, from its first attempt.

    For a job that has ended, or that waits for its time."""
    answer = session.client.post(f"/api/v1/jobs/{segment(job_id)}/retry", {})
    session.show(answer, "Job retried")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--force", is_flag=True, help="Do not wait for the worker of an active job.")
@client_options
def cancel(session: Session, job_id: str, force: bool) -> None:
    """Cancel a job.

    The worker of an active job is asked to stop; until it answers, the job stays active."""
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
