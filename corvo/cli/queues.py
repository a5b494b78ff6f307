"""Commands for queues: list, pause, drain, limit, clear, destroy, retention."""

import functools
import time

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.known_queues import create_option, find_queue, require_queue
from corvo.cli.limits import duration_text
from corvo.cli.options import DURATION, Session, client_options, confirm, yes_option
from corvo.errors import ValidationError

_POLL_S = 0.2


class Queue(msgspec.Struct):
    """The fields of a queue that the tables show."""

    name: str
    paused: bool = False
    pending: int = 0
    active: int = 0
    held: int = 0
    scheduled: int = 0
    retrying: int = 0
    completed: int = 0
    dead: int = 0
    draining: bool = False
    max_concurrency: int = 0
    rate_limit: int = 0
    rate_window_ms: int = 0
    group_concurrency: int = 0
    aging_after: float = 0

    created_at: str = ""
    oldest_pending_at: str = ""
    retention: dict[str, str] = {}
    enqueued: int = 0
    failed: int = 0
    completed_total: int = 0
    dead_total: int = 0

    def cells(self) -> list[str]:
        """One row of the table."""
        return [self.name, *self.counts(), self.paused_cell(), self.limits()]

    def paused_cell(self) -> str:
        """The cell in column PAUSED."""
        return "draining" if self.draining else "yes" if self.paused else ""

    def counts(self) -> list[str]:
        """The cells in columns PENDING to DEAD."""
        waiting = (self.pending, self.active, self.held, self.scheduled, self.retrying)
        return [str(number) for number in (*waiting, self.completed, self.dead)]

    def limits(self) -> str:
        """The cell in column LIMITS."""
        parts = (
            (self.max_concurrency, f"{self.max_concurrency} active"),
            (self.rate_limit, f"{self.rate_limit}/{duration_text(self.rate_window_ms / 1000)}"),
            (self.group_concurrency, f"{self.group_concurrency} per group"),
            (self.aging_after, f"aging {duration_text(self.aging_after)}"),
        )
        return ", ".join(text for value, text in parts if value)


class Queues(msgspec.Struct):
    """All queues."""

    queues: list[Queue]


COUNT_HEADS = ["PENDING", "ACTIVE", "HELD", "SCHEDULED", "RETRYING", "COMPLETED", "DEAD"]
_HEADS = ["QUEUE", *COUNT_HEADS, "PAUSED", "LIMITS"]


@click.command()
@click.argument("queue", required=False)
@client_options
def queues(session: Session, queue: str | None) -> None:
    """List the queues with their job counts by state, or show one queue."""
    if queue is not None:
        _show(session, find_queue(session, queue))
        return
    answer = session.client.get_pages("/api/v1/queues", "queues")
    rows = session.decode(answer, Queues).queues
    if session.as_json or not rows:
        session.show(answer, "No queues")
        return
    display.table(_HEADS, [row.cells() for row in rows])


def _show(session: Session, answer: bytes) -> None:
    row = session.decode(answer, Queue)
    if session.as_json:
        session.show(answer)
        return
    display.table(_HEADS, [row.cells()])
    kept = ", ".join(f"{state} {length}" for state, length in row.retention.items())
    facts = {
        "Created": row.created_at,
        "Oldest pending job": row.oldest_pending_at or "none",
        "Retention": kept or "as set on the server",
        "In total": f"{row.enqueued} enqueued, {row.completed_total} completed, "
        f"{row.failed} failed attempts, {row.dead_total} dead",
    }
    display.lines("", *(f"{name}: {value}" for name, value in facts.items()))


@click.command()
@click.argument("queue")
@create_option
@client_options
def pause(session: Session, queue: str, create: bool) -> None:
    """Pause a queue: it delivers no jobs.

    Jobs can still be enqueued, and active jobs can still be completed."""
    require_queue(session, queue, create)
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/pause", {})
    session.show(answer, f"Queue {queue} paused")


@click.command()
@click.argument("queue")
@create_option
@client_options
def resume(session: Session, queue: str, create: bool) -> None:
    """Resume a paused queue."""
    require_queue(session, queue, create)
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/resume", {})
    session.show(answer, f"Queue {queue} resumed")


@click.command()
@click.argument("queue")
@click.argument("maximum", metavar="MAX", type=click.IntRange(min=0))
@create_option
@client_options
def concurrency(session: Session, queue: str, maximum: int, create: bool) -> None:
    """Limit the number of active jobs of a queue.

    MAX 0 removes the limit."""
    require_queue(session, queue, create)
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/concurrency", {"max": maximum})
    change = f"set to {maximum}" if maximum else "limit removed"
    session.show(answer, f"Queue {queue} concurrency {change}")


@click.command()
@click.argument("queue")
@click.option("--wait/--no-wait", default=True, help="Wait until no job is active.")
@click.option("--timeout", type=DURATION, help="Maximum time to wait.")
@create_option
@functools.partial(client_options, with_timeout=False)
def drain(session: Session, queue: str, wait: bool, timeout: float | None, create: bool) -> None:
    """Pause a queue and wait until no job of it is active."""
    require_queue(session, queue, create)
    path = f"/api/v1/queues/{segment(queue)}"
    answer = session.client.post(f"{path}/drain", {})
    if not (session.as_json and wait):
        session.show(answer, f"Queue {queue} draining")
    if not wait:
        return
    begun = time.monotonic()
    while session.decode(answer := session.client.get(path), Queue).active:
        if timeout is not None and time.monotonic() - begun >= timeout:
            raise ValidationError(f"queue {queue} still has active jobs after {timeout:g} s")
        time.sleep(_POLL_S)
    session.show(answer, f"Queue {queue} drained")


@click.command()
@click.argument("queue")
@yes_option
@client_options
def clear(session: Session, queue: str, yes: bool) -> None:
    """Delete the pending and scheduled jobs of a queue."""
    found = session.decode(find_queue(session, queue), Queue)
    count = found.pending + found.scheduled
    confirm(f"delete {count} pending and scheduled jobs of queue {queue}", yes or not count)
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/clear", {})
    session.show(answer, f"Queue {queue} cleared")


@click.command()
@click.argument("queue")
@click.option("--yes", "--confirm", is_flag=True, help="Do not ask for confirmation.")
@client_options
def destroy(session: Session, queue: str, yes: bool) -> None:
    """Delete a queue, all its jobs and its settings."""
    find_queue(session, queue)
    confirm(f"delete queue {queue} and all its jobs", yes, "--confirm")
    path = f"/api/v1/queues/{segment(queue)}?confirm=true"
    session.show(session.client.request("DELETE", path), f"Queue {queue} destroyed")


@click.command()
@click.argument("queue")
@click.option("--completed", metavar="DURATION", help="For completed jobs.")
@click.option("--dead", metavar="DURATION", help="For dead jobs.")
@click.option("--cancelled", metavar="DURATION", help="For cancelled jobs.")
@create_option
@client_options
def retention(session: Session, queue: str, create: bool, **kept: str | None) -> None:
    """Set how long a queue keeps finished jobs.

    DURATION is a duration, forever, or default for the setting of the server."""
    body = {
        name: None if value == "default" else value
        for name, value in kept.items()
        if value is not None
    }
    if not body:
        raise ValidationError("give --completed, --dead or --cancelled")
    require_queue(session, queue, create)
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/retention", body)
    session.show(answer, f"Queue {queue} retention set")
