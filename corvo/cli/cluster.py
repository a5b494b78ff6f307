"""Commands for the whole server: status, workers, and the nodes of a cluster."""

import click
import msgspec

from corvo.cli import display
from corvo.cli.options import Session, client_options
from corvo.cli.queues import COUNT_HEADS, Queue


class Cluster(msgspec.Struct):
    """The fields of the cluster status that `status` shows."""

    mode: str = ""
    status: str = ""
    durable: bool | None = None
    nodes: list[msgspec.Raw] = []


class Node(msgspec.Struct):
    """The fields of a node that the table shows."""

    id: str
    address: str = ""
    http_addr: str = ""
    role: str = ""
    voter: bool = False
    lag: int | None = None

    def cells(self) -> list[str]:
        """One row of the table."""
        lag = "" if self.lag is None else str(self.lag)
        return [self.id, self.address, self.http_addr, self.role, "yes" * self.voter, lag]


class Nodes(msgspec.Struct):
    """The fields of the cluster status that `cluster status` shows."""

    node_id: str = ""
    state: str = ""
    leader_id: str = ""
    applied_index: int = 0
    commit_index: int = 0
    nodes: list[Node] = []


class Named(msgspec.Struct):
    """A response that names a node."""

    node_id: str = ""


class Written(msgspec.Struct):
    """Response to a snapshot: the index of the last log entry in it."""

    index: int = 0


class Worker(msgspec.Struct):
    """The fields of a worker that the table shows."""

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
    """List the workers, the most recent heartbeat first."""
    answer = session.client.get("/api/v1/workers")
    rows = session.decode(answer, list[Worker])
    if session.as_json or not rows:
        session.show(answer, "No workers connected")
        return
    display.table(
        ["ID", "HOSTNAME", "LAST HEARTBEAT"],
        [[row.id, row.hostname, row.last_heartbeat or ""] for row in rows],
    )


@click.group()
def cluster() -> None:
    """Show and change the nodes of a cluster."""


@cluster.command(name="status")
@client_options
def cluster_status(session: Session) -> None:
    """Show the nodes from the view of the queried node."""
    answer = session.client.get("/api/v1/cluster/status")
    state = session.decode(answer, Nodes)
    if session.as_json:
        session.show(answer)
        return
    display.lines(
        f"Node: {state.node_id}  State: {state.state}  Leader: {state.leader_id or 'none'}"
        f"  Applied: {state.applied_index}  Committed: {state.commit_index}",
        "",
    )
    rows = [node.cells() for node in state.nodes]
    display.table(["NODE", "ADDRESS", "HTTP", "ROLE", "VOTER", "LAG"], rows)


@cluster.command()
@click.argument("node")
@client_options
def remove(session: Session, node: str) -> None:
    """Remove a node permanently.

    The removed node cannot rejoin with its present data directory."""
    answer = session.client.post("/api/v1/cluster/remove", {"node_id": node})
    session.show(answer, f"Node {node} removed")


@cluster.command()
@click.argument("node")
@client_options
def promote(session: Session, node: str) -> None:
    """Make a node that has caught up a voter.

    The leader also promotes nodes automatically."""
    answer = session.client.post("/api/v1/cluster/promote", {"node_id": node})
    session.show(answer, f"Node {node} is a voter")


@cluster.command()
@click.argument("node", required=False)
@client_options
def transfer(session: Session, node: str | None) -> None:
    """Transfer the leadership to NODE, or to the most up-to-date node."""
    body = {} if node is None else {"node_id": node}
    answer = session.client.post("/api/v1/cluster/transfer", body)
    session.show(answer, f"Node {session.decode(answer, Named).node_id} takes over the leadership")


@cluster.command()
@client_options
def snapshot(session: Session) -> None:
    """Write the state of the queried node to disk and trim its log."""
    answer = session.client.post("/api/v1/cluster/snapshot", {})
    index = session.decode(answer, Written).index
    session.show(answer, f"The state is written up to log entry {index}")
