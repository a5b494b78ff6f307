"""Commands for unique keys: locks, with the subcommands list and release."""

from urllib.parse import urlencode

import click
import msgspec

from corvo.cli import display
from corvo.cli.command_line import ListingGroup
from corvo.cli.options import Session, client_options


class Lock(msgspec.Struct):
    """The fields of a unique key that the table shows."""

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
    """Response to a release."""

    job_id: str


@click.group(cls=ListingGroup)
def locks() -> None:
    """List the held unique keys, or release one."""


@locks.command("list")
@click.option("--queue", help="Only keys of this queue.")
@client_options
def list_all(session: Session, queue: str | None) -> None:
    """List the held unique keys; same as `corvo locks` without a subcommand."""
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
        shrinkable=[0, 1, 2],
    )


@locks.command()
@click.argument("queue")
@click.argument("key")
@click.option("--job-id", help="Release only if this job holds the key.")
@client_options
def release(session: Session, queue: str, key: str, job_id: str | None) -> None:
    """Release a unique key.

    The job that held it is unchanged, but another job with the same key can be enqueued."""
    body = {"queue": queue, "unique_key": key} | ({"job_id": job_id} if job_id else {})
    answer = session.client.post("/api/v1/locks/release", body)
    session.show(answer, f"Key released by job {session.decode(answer, Released).job_id}")
