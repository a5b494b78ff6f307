"""Commands on single jobs: enqueue, inspect, retry, cancel, delete."""

import click
import msgspec

from corvo.cli.api import segment
from corvo.cli.options import DURATION, JSON, Session, client_options
from corvo.model import BACKOFFS, PRIORITY_NAMES, UNIQUE_UNTIL


class Enqueued(msgspec.Struct):
    """Answer to an enqueue."""

    job_id: str
    status: str


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
@click.option("--group-key", metavar="KEY", help="Group of jobs of the queue that it is one of.")
@click.option("--checkpoint", type=JSON, help="Where the handler is to start from.")
@client_options
def enqueue(session: Session, queue: str, payload: msgspec.Raw, **options: object) -> None:
    """Put a job into a queue.

    PAYLOAD is JSON text, - for standard input, or @file."""
    given = {name: value for name, value in options.items() if value is not None}
    answer = session.client.post("/api/v1/enqueue", {"queue": queue, "payload": payload, **given})
    job = session.decode(answer, Enqueued)
    session.show(answer, f"Job enqueued: {job.job_id} (status: {job.status})")


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
