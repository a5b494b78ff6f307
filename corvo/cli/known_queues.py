"""Names of queues in commands: a queue that does not exist is refused, so that a typo shows."""

import difflib

import click
import msgspec

from corvo.cli.api import ServerError, segment
from corvo.cli.options import Session

create_option = click.option(
    "--create", is_flag=True, help="Create the queue if it does not exist."
)


class _Named(msgspec.Struct):
    name: str


class _Queues(msgspec.Struct):
    queues: list[_Named]


def require_queue(session: Session, queue: str, create: bool) -> None:
    """Raise unless the queue exists or `create` allows to create it."""
    if not create:
        find_queue(session, queue, "--create creates it")


def find_queue(session: Session, queue: str, hint: str = "") -> bytes:
    """Fetch a queue; if it does not exist, raise an error that names the nearest one."""
    try:
        return session.client.get(f"/api/v1/queues/{segment(queue)}")
    except ServerError as e:
        if e.code != "NOT_FOUND":
            raise
        missing = e
    rows = session.decode(session.client.get_pages("/api/v1/queues", "queues"), _Queues).queues
    near = difflib.get_close_matches(queue, [row.name for row in rows], 1)
    suggestion = f" (did you mean {near[0]}?)" if near else ""
    text = f"queue {queue} does not exist{suggestion}"
    raise ServerError(f"{text}; {hint}" if hint else text, missing.code, missing.fields)
