"""Commands on unique keys: locks, and release below it."""

from urllib.parse import urlencode

import click
import msgspec

from corvo.cli import display
from corvo.cli.options import ListingGroup, Session, client_options


class Lock(msgspec.Struct):
    """The part of a unique key that the table shows."""

    queue: str
    unique_key: str
    job_id: str
    state: str
    expires_at: str = ""


class Locks(msgspec.Struct):
    """A page of unique keys."""

    locks: list[msgspec.Raw] = []
    cursor: str = ""


class Released(msgspec.Struct):
    """Answer to a release."""

    job_id: str


@click.group(cls=ListingGroup)
def locks() -> None:
    """List the unique keys that are held, or release one."""


@locks.command("list")
@click.option("--queue", help="Only keys of this queue.")
@client_options
def list_all(session: Session, queue: str | None) -> None:
    """List the unique keys that are held; what `corvo locks` alone does."""
    raws: list[msgspec.Raw] = []
    cursor = ""
    while True:
        given = {"limit": "1000", "queue": queue, "cursor": cursor}
        query = urlencode({name: value for name, value in given.items() if value})
        answer = session.client.get(f"/api/v1/locks?{query}")
        page = session.decode(answer, Locks)
        raws += page.locks
        cursor = page.cursor
        if not cursor:
            break
    if session.as_json or not raws:
        session.show(b'{"locks":[%b]}' % b",".join(map(bytes, raws)), "No unique keys are held")
        return
    rows = [session.decode(bytes(raw), Lock) for raw in raws]
    display.table(
        ["KEY", "QUEUE", "JOB", "STATE", "EXPIRES"],
        [[row.unique_key, row.queue, row.job_id, row.state, row.expires_at] for row in rows],
        giving_way=[0, 1, 2],
    )


@locks.command()
@click.argument("queue")
@click.argument("key")
@click.option("--job-id", help="Only if this job holds it.")
@client_options
def release(session: Session, queue: str, key: str, job_id: str | None) -> None:
    """Take a unique key from the job that holds it.

    The job goes on as before, but another one with the same key can be made."""
    body = {"queue": queue, "unique_key": key} | ({"job_id": job_id} if job_id else {})
    answer = session.client.post("/api/v1/locks/release", body)
    session.show(answer, f"Key released by job {session.decode(answer, Released).job_id}")
