"""Commands on queues: queues, pause, resume, concurrency."""

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.options import Session, client_options


class Queue(msgspec.Struct):
    """The part of a queue that the tables show."""

    name: str
    paused: bool = False
    pending: int = 0
    active: int = 0
    held: int = 0
    scheduled: int = 0
    retrying: int = 0
    completed: int = 0
    dead: int = 0

    def counts(self) -> list[str]:
        """The cells PENDING to DEAD."""
        waiting = (self.pending, self.active, self.held, self.scheduled, self.retrying)
        return [str(number) for number in (*waiting, self.completed, self.dead)]


COUNT_HEADS = ["PENDING", "ACTIVE", "HELD", "SCHEDULED", "RETRYING", "COMPLETED", "DEAD"]


@click.command()
@client_options
def queues(session: Session) -> None:
    """List the queues and their jobs by state."""
    answer = session.client.get("/api/v1/queues")
    rows = session.decode(answer, list[Queue])
    if session.as_json or not rows:
        session.show(answer, "No queues")
        return
    display.table(
        ["QUEUE", *COUNT_HEADS, "PAUSED"],
        [[row.name, *row.counts(), "yes" if row.paused else ""] for row in rows],
    )


@click.command()
@click.argument("queue")
@client_options
def pause(session: Session, queue: str) -> None:
    """Hand out no more jobs of a queue.

    Jobs can still be enqueued, and jobs already handed out can still be completed."""
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/pause", {})
    session.show(answer, f"Queue {queue} paused")


@click.command()
@click.argument("queue")
@client_options
def resume(session: Session, queue: str) -> None:
    """Hand out jobs of a paused queue again."""
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/resume", {})
    session.show(answer, f"Queue {queue} resumed")


@click.command()
@click.argument("queue")
@click.argument("maximum", metavar="MAX", type=click.IntRange(min=0))
@client_options
def concurrency(session: Session, queue: str, maximum: int) -> None:
    """Limit how many jobs of a queue run at once.

    MAX 0 removes the limit."""
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/concurrency", {"max": maximum})
    what = f"set to {maximum}" if maximum else "limit removed"
    session.show(answer, f"Queue {queue} concurrency {what}")
