"""Commands for the whole server: status, workers, and the nodes of a cluster."""

import click
import msgspec

from corvo.cli import display
from corvo.cli.command_line import Commands
from corvo.cli.options import Session, client_options
from corvo.cli.queues import COUNT_HEADS, Queues
from corvo.errors import NotFound

_WORKER_HEADS = ["ID", "HOSTNAME", "LAST HEARTBEAT", "STATUS"]


class Mirror(msgspec.Struct, frozen=True):
    """The fields of the search mirror that `status` shows."""

    enabled: bool = False
    available: bool = True
    error: str = ""


class Node(msgspec.Struct):
    """The fields of a node that the table shows."""

    id: str = ""
    address: str = ""
    http_addr: str = ""
    role: str = ""
    voter: bool = False
    lag: int | None = None
    status: str = ""
    connected: bool | None = None
    state_differs: bool = False
    last_contact_ms: int | None = None

    def __post_init__(self) -> None:
        if self.state_differs:
            self.status = "diverged"
        elif not self.status and self.connected is not None:
            # Only the leader knows the progress of the others; this node knows its connections.
            self.status = "connected" if self.connected else "unreachable"

    def healthy(self) -> bool:
        """Whether no problem of the node is known."""
        return self.status in ("", "healthy", "connected")

    def cells(self) -> list[str]:
        """One row of the table."""
        lag = "" if self.lag is None else str(self.lag)
        contact = ""
        if self.last_contact_ms is not None:
            contact = f"{self.last_contact_ms / 1000:.1f}s ago"
        where = [self.id, self.address, self.http_addr]
        return [*where, self.role, "yes" * self.voter, self.status or "unknown", lag, contact]


class Cluster(msgspec.Struct):
    """The fields of the cluster status that `status` shows."""

    mode: str = ""
    status: str = ""
    disk_full: bool = False
    leader_id: str = ""
    sqlite_mirror: Mirror = Mirror()
    nodes: list[Node] = []

    def problems(self) -> list[str]:
        """Reasons for a status other than healthy, and what does not work."""
        found = ["the disk is full: no new jobs are accepted"] * self.disk_full
        if self.mode == "cluster" and not self.leader_id:
            found.append("no leader is known: no writes are possible")
        found += [f"node {node.id} is {node.status}" for node in self.nodes if not node.healthy()]
        if self.sqlite_mirror.enabled and not self.sqlite_mirror.available:
            trouble = f": {self.sqlite_mirror.error}" if self.sqlite_mirror.error else ""
            found.append(f"search is not available{trouble}")
        return found


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
    status: str = ""
    queues: list[str] = []
    started_at: str = ""

    def cells(self) -> list[str]:
        """One row of the table."""
        return [self.id, self.hostname, self.last_heartbeat or "", self.status]


@click.command()
@client_options
def status(session: Session) -> None:
    """Show the state of the server and its queues."""
    cluster = session.client.get("/api/v1/cluster/status")
    queues = session.client.get_pages("/api/v1/queues", "queues")
    state = session.decode(cluster, Cluster)
    rows = session.decode(queues, Queues).queues
    if session.as_json:
        session.show(b'{"cluster":%s,%s' % (cluster, queues[1:]))
        return
    display.lines(f"Mode: {state.mode}  Status: {state.status}")
    display.lines(*(f"- {problem}" for problem in state.problems()), "")
    if rows:
        display.table(["QUEUE", *COUNT_HEADS], [[row.name, *row.counts()] for row in rows])
    else:
        display.lines("No queues")


@click.command()
@click.argument("worker", required=False)
@client_options
def workers(session: Session, worker: str | None) -> None:
    """List the workers, the most recent heartbeat first, or show one worker."""
    answer = session.client.get_array("/api/v1/workers")
    if worker is not None:
        _show_worker(session, answer, worker)
        return
    rows = session.decode(answer, list[Worker])
    if session.as_json or not rows:
        session.show(answer, "No workers connected")
        return
    display.table(_WORKER_HEADS, [row.cells() for row in rows])


def _show_worker(session: Session, answer: bytes, name: str) -> None:
    for raw in session.decode(answer, list[msgspec.Raw]):
        row = session.decode(bytes(raw), Worker)
        if row.id == name:
            break
    else:
        raise NotFound(f"worker {name} does not exist")
    if session.as_json:
        session.show(bytes(raw))
        return
    display.table(_WORKER_HEADS, [row.cells()])
    display.lines("", f"Queues: {', '.join(row.queues)}", f"Started: {row.started_at}")


@click.group(cls=Commands)
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
    display.table(["NODE", "ADDRESS", "HTTP", "ROLE", "VOTER", "STATUS", "LAG", "CONTACT"], rows)


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
