"""Commands for batches: batches create, show."""

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.command_line import Commands
from corvo.cli.options import JSON, Session, client_options


class Batch(msgspec.Struct):
    """The part of a batch that is shown."""

    id: str
    total: int = 0
    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    created_at: str = ""
    finished_at: str = ""
    pending_jobs: list[str] = []

    def cells(self) -> list[str]:
        """One row of the table."""
        counts = (self.total, self.pending, self.succeeded, self.failed)
        return [self.id, *map(str, counts), self.created_at, self.finished_at]


class EnqueuedBatch(msgspec.Struct):
    """Response to a batch enqueue."""

    job_ids: list[str]
    batch_id: str


HEADS = ["BATCH", "TOTAL", "PENDING", "SUCCEEDED", "FAILED", "CREATED", "FINISHED"]


@click.group(cls=Commands)
def batches() -> None:
    """Enqueue jobs as a batch, or show the progress of a batch."""


@batches.command()
@click.argument("jobs", type=JSON)
@click.option(
    "--on-success", metavar="QUEUE", help="Queue for a callback job when all jobs completed."
)
@click.option(
    "--on-complete", metavar="QUEUE", help="Queue for a callback job when all jobs have ended."
)
@click.option(
    "--on-death", metavar="QUEUE", help="Queue for a callback job when the first job fails."
)
@client_options
def create(session: Session, jobs: msgspec.Raw, **queues: str | None) -> None:
    """Enqueue jobs as one batch.

    JOBS is a JSON array of jobs, each with its queue; - reads standard input, @FILE a file."""
    batch = {name: {"queue": queue} for name, queue in queues.items() if queue is not None}
    answer = session.client.post("/api/v1/enqueue/batch", {"jobs": jobs, "batch": batch})
    made = session.decode(answer, EnqueuedBatch)
    session.show(answer, f"Batch {made.batch_id}: {len(made.job_ids)} jobs enqueued")


@batches.command()
@click.argument("batch_id", metavar="BATCH-ID")
@client_options
def show(session: Session, batch_id: str) -> None:
    """Show the progress of a batch and its pending jobs."""
    answer = session.client.get(f"/api/v1/batches/{segment(batch_id)}")
    batch = session.decode(answer, Batch)
    if session.as_json:
        session.show(answer)
        return
    display.table(HEADS, [batch.cells()])
    if batch.pending_jobs:
        display.lines("", "Pending jobs:", *(f"  {job_id}" for job_id in batch.pending_jobs))
        if len(batch.pending_jobs) < batch.pending:
            display.lines(f"  and {batch.pending - len(batch.pending_jobs)} more")
