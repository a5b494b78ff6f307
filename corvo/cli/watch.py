"""The command watch: live events."""

import time
from collections.abc import Iterator
from urllib.parse import urlencode

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import Unreachable
from corvo.cli.options import Session, client_options

_SILENCE_S = 30.0  # a healthy stream sends a keepalive every 15 seconds
_PAUSE_S = 0.5


class Event(msgspec.Struct):
    """The fields of an event that are shown."""

    type: str
    created_at: str = ""
    job_id: str = ""
    queue: str = ""
    data: msgspec.Raw = msgspec.Raw()
    after: int = 0
    resumed_after: int = 0


@click.command()
@click.argument("job_ids", metavar="[JOB-ID]...", nargs=-1)
@click.option("--queue", "queues", multiple=True, help="Only events of this queue; repeatable.")
@click.option("--type", "types", multiple=True, help="Only events of this type; repeatable.")
@click.option(
    "--after", type=click.IntRange(min=0), help="Start after this event id instead of now."
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this number of events.")
@client_options
def watch(
    session: Session,
    job_ids: tuple[str, ...],
    queues: tuple[str, ...],
    types: tuple[str, ...],
    after: int | None,
    count: int | None,
) -> None:
    """Print events as they happen, of all jobs or of the given jobs.

    With --output json each event is one line of JSON. After a broken connection the command
    reconnects without losing events."""
    filters = {"job_ids": job_ids, "queues": queues, "types": types}
    query = {name: ",".join(names) for name, names in filters.items() if names}
    for shown, raw in enumerate(_events(session, query, after), 1):
        if session.as_json:
            click.echo(display.json_line(raw))
        else:
            display.lines(_plain(session.decode(raw, Event)))
        if shown == count:
            return


def _events(session: Session, query: dict[str, str], after: int | None) -> Iterator[bytes]:
    """Yield events as JSON; reconnect and resume when the connection ends.

    Raise if no new connection succeeds within the client timeout."""
    deadline: float | None = None
    while True:
        where = {} if after is None else {"last_event_id": after}
        path = "/api/v1/events"
        if query or where:
            path += f"?{urlencode({**query, **where})}"
        try:
            for line in session.client.lines(path, _SILENCE_S):
                deadline = time.monotonic() + session.client.timeout_s
                field, _, value = line.partition(b": ")
                if field == b"id":
                    after = int(value)
                elif field == b"data":
                    yield value
        except Unreachable:
            if deadline is None or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def _plain(event: Event) -> str:
    if event.type == "gap":
        return f"-- no events of {event.after + 1} to {event.resumed_after} --"
    columns = [event.created_at, event.type, event.queue, event.job_id, bytes(event.data).decode()]
    return "  ".join(column for column in columns if column)
