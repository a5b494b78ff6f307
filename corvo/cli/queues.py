"""Commands on queues: queues, pause, resume, concurrency."""

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.flow import words
from corvo.cli.options import Session, client_options


class Queue(msgspec.Struct):
    """The part of a queue that the tables show."""

    name: str
    paused: bool = False
    pending: int = 0
    active: int = 0
    held: int = 0
    completed: int = 0
    dead: int = 0
    max_concurrency: int = 0
    rate_limit: int = 0
    rate_window_ms: int = 0
    group_concurrency: int = 0
    aging_after: float = 0

    def counts(self) -> list[str]:
        """The cells PENDING to DEAD."""
        numbers = (self.pending, self.active, self.held, self.completed, self.dead)
        return [str(number) for number in numbers]

    def limits(self) -> str:
        """The cell LIMITS."""
        parts = (
            (self.max_concurrency, f"{self.max_concurrency} active"),
            (self.rate_limit, f"{self.rate_limit}/{words(self.rate_window_ms / 1000)}"),
            (self.group_concurrency, f"{self.group_concurrency} a group"),
            (self.aging_after, f"aging {words(self.aging_after)}"),
        )
        return ", ".join(text for value, text in parts if value)


COUNT_HEADS = ["PENDING", "ACTIVE", "HELD", "COMPLETED", "DEAD"]


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
        ["QUEUE", *COUNT_HEADS, "PAUSED", "LIMITS"],
        [[row.name, *row.counts(), "yes" if row.paused else "", row.limits()] for row in rows],
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
