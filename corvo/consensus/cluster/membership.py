"""Cluster membership: node names, addresses and joining.

In the log the id of a member is `name/incarnation` (`corvo.consensus.raft_log.raft_id`), so a node
that lost its data is a new member. For each id the configuration has the addresses of the node
(`NodeAddresses`).

A node joins in three steps. First it queries a configured node for the cluster id and creates its
data directory with it. Then it starts and requests to join; the leader adds it as a learner, so
that it receives the log. When it has caught up, the leader promotes it to voter automatically.
"""

import asyncio
import hashlib
import hmac
import logging
import socket
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from corvo._fast.codec.layouts import CodecError, decode_fields, encode_fields
from corvo.config import Address, Config
from corvo.consensus.cluster.discovery import Discovery, parse_join_address
from corvo.consensus.raft.membership import ADD_LEARNER, PROMOTE, REMOVE, UPDATE, Change
from corvo.consensus.raft.messages import ConfState
from corvo.consensus.raft_log import RaftLog
from corvo.errors import Conflict, CorvoError, Forbidden, NotFound
from corvo.platform.noop import noop
from corvo.platform.periodic import Periodic

logger = logging.getLogger(__name__)

_LAYOUT: Final = "ss"
_RAFT_PORT_DEFAULT: Final = 9000
_PROMOTE_S: Final = 0.5


class NodeAddresses(NamedTuple):
    """Addresses of a node: HOST:PORT of its peer port, and of its HTTP API.

    The prefix https:// of `http` means TLS."""

    raft: str
    http: str


def encode_addresses(where: NodeAddresses) -> bytes:
    """Encode addresses for the configuration."""
    return encode_fields(_LAYOUT, tuple(where))


def decode_addresses(data: bytes) -> NodeAddresses:
    """Decode addresses; invalid bytes give empty addresses."""
    try:
        return NodeAddresses(*decode_fields(_LAYOUT, data))
    except CodecError:
        return NodeAddresses("", "")


def node_name(member_id: str) -> str:
    """The node name (--node-id) of a member id."""
    return member_id.rpartition("/")[0] or member_id


def raft_address(config: Config) -> Address:
    """The listen address for other nodes."""
    return config.raft_bind or Address("", _RAFT_PORT_DEFAULT)


def addresses(config: Config, http: Address) -> NodeAddresses:
    """The advertised addresses of this node; `http` has the actual port of the listener."""
    bind = raft_address(config)
    raft = config.raft_advertise or bind
    if not raft.host or raft.host in ("0.0.0.0", "::"):
        raft = Address(_own_host(config), raft.port)
    advertised = config.http_advertise or http
    if not advertised.host or advertised.host in ("0.0.0.0", "::"):
        advertised = Address(raft.host, advertised.port)
    return NodeAddresses(str(raft), f"https://{advertised}" if config.tls_cert else str(advertised))


def _own_host(config: Config) -> str:
    """The address of this machine as other nodes see it; loopback if no other node is
    configured."""
    if config.join:
        target = parse_join_address(config.join).address
        host, port = target.host, target.port
    elif config.discover:
        host, port = config.discover_name, config.discover_port
    else:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def proof(secret: str, *facts: str) -> str:
    """An HMAC over facts; it proves knowledge of the cluster secret without sending it."""
    text = "\n".join(("join", *facts))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


class Members:
    """Changes the members of the cluster, and lets this node join."""

    def __init__(
        self, config: Config, cluster_id: str, log: RaftLog, loop: Any, discovery: Discovery
    ) -> None:
        self._config = config
        self._discovery = discovery
        self._cluster_id = cluster_id
        self._log = log
        self._loop = loop
        self._promoter = Periodic(loop, _PROMOTE_S, self._promote)
        self._task: asyncio.Task[None] | None = None
        self._where = NodeAddresses("", "")

    def start(self, where: NodeAddresses) -> None:
        """Start automatic promotion and joining; `where` has the advertised addresses of this
        node."""
        self._where = where
        self._promoter.start()
        self._promote()
        members = self._log.conf.members
        if members and self._log.node_id not in members:
            logger.warning(
                "this node was removed from the cluster: start it with an empty data directory"
            )
        elif not self._is_known():
            self._task = self._loop.create_task(self._join())

    def close(self) -> None:
        """Stop the timer and the join."""
        self._promoter.close()
        if self._task is not None:
            self._task.cancel()

    # Changes by the leader.

    def _promote(self) -> None:
        """Promote learners that have caught up."""
        if self._log.leading:
            for member_id in self._log.conf.learners:
                self._log.change(Change(PROMOTE, member_id), noop)

    def find(self, name: str) -> str:
        """Find the id of a member by name or id. Raises NotFound."""
        for member_id in self._log.conf.members:
            if name in (member_id, node_name(member_id)):
                return member_id
        raise NotFound(f"node {name!a} is not a member of the cluster")

    def check_proof(self, given: str, *facts: str) -> None:
        """Verify the HMAC of a join request. Raises Forbidden."""
        if not hmac.compare_digest(given, proof(self._config.cluster_secret, *facts)):
            raise Forbidden("the join request has a wrong proof: the cluster secrets differ")

    def add(
        self, member_id: str, raft: str, http: str, answer: Callable[[bool | CorvoError], None]
    ) -> None:
        """Add a learner; `answer` gets whether it is new, or an error. Leader only."""
        conf = self._log.conf
        context = encode_addresses(NodeAddresses(raft, http))
        if member_id in conf.members:
            if conf.contexts[member_id] == context:
                answer(False)
            else:
                self._change(Change(UPDATE, member_id, context), False, answer)
            return
        name = node_name(member_id)
        for other in conf.members:
            if node_name(other) == name:
                raise Conflict(
                    f"another node {name!a} is already in the cluster: use another --node-id, or"
                    " remove the existing node first if its data is lost"
                )
        self._change(Change(ADD_LEARNER, member_id, context), True, answer)

    def _change(
        self, change: Change, result: bool, answer: Callable[[bool | CorvoError], None]
    ) -> None:
        self._log.change(change, lambda error: answer(result if error is None else error))

    def remove(self, name: str, answer: Callable[[CorvoError | None], None]) -> None:
        """Remove a member. Leader only."""
        self._log.change(Change(REMOVE, self.find(name)), answer)

    def promote(self, name: str, answer: Callable[[CorvoError | None], None]) -> None:
        """Make a learner a voter. Leader only."""
        member_id = self.find(name)
        if member_id in self._log.conf.voters:
            answer(None)
            return
        self._log.change(Change(PROMOTE, member_id), answer)

    def transfer(self, name: str) -> str:
        """Transfer the leadership, by default to the most up-to-date voter; return the node name.

        Raises Conflict if this is not possible."""
        self._log.transfer(self.find(name) if name else "")
        return node_name(self._log.status().transferee)

    # Joining by a new node.

    def _is_known(self) -> bool:
        """Whether this node is a member with its present addresses."""
        conf = self._log.conf
        context = conf.contexts.get(self._log.node_id)
        return context is not None and context == encode_addresses(self._where)

    async def _join(self) -> None:
        """Send join requests until this node is a member with its present addresses."""
        log, where = self._log, self._where
        facts = self._cluster_id, log.node_id, where.raft, where.http
        body = {
            "node_id": log.node_id,
            "addr": where.raft,
            "http_addr": where.http,
            "cluster_id": self._cluster_id,
            "proof": proof(self._config.cluster_secret, *facts),
        }
        await self._discovery.ask_in_turn(self._known_apis, "/cluster/join", body, self._is_known)
        logger.info("this node is a member of the cluster")

    def _known_apis(self) -> list[str]:
        """The API addresses of all members and of this node, which may be the leader."""
        known = [http_address(self._log.conf, member) for member in self._log.conf.members]
        return [*filter(None, known), self._where.http]


def peers_of(conf: ConfState, own_id: str) -> dict[str, str]:
    """The peer addresses of the other members."""
    return {
        member_id: decode_addresses(context).raft
        for member_id, context in conf.contexts.items()
        if member_id != own_id
    }


def http_address(conf: ConfState, member_id: str) -> str:
    """The API address of a member, or "" if unknown."""
    return decode_addresses(conf.contexts.get(member_id, b"")).http
