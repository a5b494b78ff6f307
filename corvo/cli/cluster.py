"""Commands on the server as a whole: status, workers."""

import click
import msgspec

from corvo.cli import display
from corvo.cli.options import Session, client_options
from corvo.cli.queues import COUNT_HEADS, Queue


class Cluster(msgspec.Struct):
    """The part of the cluster status that the commands show."""

    mode: str = ""
    status: str = ""
    durable: bool | None = None
    nodes: list[msgspec.Raw] = []


class Worker(msgspec.Struct):
    """The part of a worker that the table shows."""

    id: str
    hostname: str = ""
    last_heartbeat: str | None = None


@click.command()
@client_options
def status(session: Session) -> None:
    """Show the state of the server and its queues."""
    cluster = session.client.get("/api/v1/cluster/status")
    queues = session.client.get("/api/v1/queues")
    state = session.decode(cluster, Cluster)
    rows = session.decode(queues, list[Queue])
    if session.as_json:
        session.show(b'{"cluster":%s,"queues":%s}' % (cluster, queues))
        return
    display.lines(f"Mode: {state.mode}  Status: {state.status}", "")
    if rows:
        display.table(["QUEUE", *COUNT_HEADS], [[row.name, *row.counts()] for row in rows])
    else:
        display.lines("No queues")


@click.command()
@client_options
def workers(session: Session) -> None:
    """List the workers, the one heard of last first."""
    answer = session.client.get("/api/v1/workers")
    rows = session.decode(answer, list[Worker])
    if session.as_json or not rows:
        session.show(answer, "No workers connected")
        return
    display.table(
        ["ID", "HOSTNAME", "LAST HEARTBEAT"],
        [[row.id, row.hostname, row.last_heartbeat or ""] for row in rows],
    )
