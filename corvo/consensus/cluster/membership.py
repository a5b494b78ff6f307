"""The nodes of a cluster as people and the other nodes know them: names, addresses, joining.

In the log a member is `name/incarnation` (`corvo.consensus.raft_log.raft_id`): a node that has lost
its data comes back as another one. What the configuration carries beside each id is where the node
listens (`NodeAddresses`).

A node joins in three steps. It asks the node that it is told for the id of the cluster, and makes
its data directory with it. It starts, and asks to be taken in; the leader adds it as a learner, so
that it gets the log. When it has caught up the leader makes it a voter, by itself.
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

logger = logging.getLogger(__name__)

_LAYOUT: Final = "ss"
_RAFT_PORT_DEFAULT: Final = 9000
_PROMOTE_S: Final = 0.5


class NodeAddresses(NamedTuple):
    """Where a node listens: HOST:PORT for other nodes, and for the HTTP API, where https:// in
    front says that it speaks TLS."""

    raft: str
    http: str


def encode_addresses(where: NodeAddresses) -> bytes:
    """What the configuration carries of a member."""
    return encode_fields(_LAYOUT, tuple(where))


def decode_addresses(data: bytes) -> NodeAddresses:
    """Nowhere, if that is not what the bytes say."""
    try:
        return NodeAddresses(*decode_fields(_LAYOUT, data))
    except CodecError:
        return NodeAddresses("", "")


def node_name(member_id: str) -> str:
    """The name that people gave to a member."""
    return member_id.rpartition("/")[0] or member_id


def raft_address(config: Config) -> Address:
    """Where this node listens for others."""
    return config.raft_bind or Address("", _RAFT_PORT_DEFAULT)


def addresses(config: Config, http: Address) -> NodeAddresses:
    """What this node tells others of itself. `http` has the port that it really listens on."""
    bind = raft_address(config)
    raft = config.raft_advertise or bind
    if not raft.host or raft.host in ("0.0.0.0", "::"):
        raft = Address(_own_host(config), raft.port)
    shown = config.http_advertise or http
    if not shown.host or shown.host in ("0.0.0.0", "::"):
        shown = Address(raft.host, shown.port)
    return NodeAddresses(str(raft), f"https://{shown}" if config.tls_cert else str(shown))


def _own_host(config: Config) -> str:
    """The address of this machine as other nodes see it; the loopback when none is named."""
    if config.join:
        host, port = (seed := parse_join_address(config.join).address).host, seed.port
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
    """Shows that who says these facts knows the secret of the cluster, without saying it."""
    text = "\n".join(("join", *facts))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


class Members:
    """Changes of the members, and the wish of this node to be one."""

    def __init__(
        self, config: Config, cluster_id: str, log: RaftLog, loop: Any, discovery: Discovery
    ) -> None:
        self._config = config
        self._discovery = discovery
        self._cluster_id = cluster_id
        self._log = log
        self._loop = loop
        self._timer: Any = None
        self._task: asyncio.Task[None] | None = None
        self._where = NodeAddresses("", "")

    def start(self, where: NodeAddresses) -> None:
        """Begin to look after the members; `where` is what others are told of this node."""
        self._where = where
        self._promote()
        members = self._log.conf.members
        if members and self._log.node_id not in members:
            logger.warning(
                "this node was removed from the cluster: start it with an empty directory"
            )
        elif not self._is_known():
            self._task = self._loop.create_task(self._join())

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    # The leader's side.

    def _promote(self) -> None:
        """Let learners vote as soon as they have caught up."""
        self._timer = self._loop.call_later(_PROMOTE_S, self._promote)
        if self._log.leading:
            for member_id in self._log.conf.learners:
                self._log.change(Change(PROMOTE, member_id), _ignore)

    def find(self, name: str) -> str:
        """The id of a member, by name or id. Raises NotFound."""
        for member_id in self._log.conf.members:
            if name in (member_id, node_name(member_id)):
                return member_id
        raise NotFound(f"node {name!a} is not a member of the cluster")

    def check_proof(self, given: str, *facts: str) -> None:
        """Raises Forbidden when they do not come from somebody who knows the secret."""
        if not hmac.compare_digest(given, proof(self._config.cluster_secret, *facts)):
            raise Forbidden("this join does not prove that it knows the secret of the cluster")

    def add(
        self, member_id: str, raft: str, http: str, answer: Callable[[bool | CorvoError], None]
    ) -> None:
        """Add a learner with its addresses; answers whether it is new. Leader only."""
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
                    f"there is another node {name!a} in the cluster: give this one another"
                    " --node-id, or remove the other first if its data is lost"
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
        """Let another member lead, the best one if none is named; its name. Raises Conflict."""
        self._log.transfer(self.find(name) if name else "")
        return node_name(self._log.status().transferee)

    # The newcomer's side.

    def _is_known(self) -> bool:
        """Whether this node is a member, and found where it is."""
        conf = self._log.conf
        context = conf.contexts.get(self._log.node_id)
        return context is not None and context == encode_addresses(self._where)

    async def _join(self) -> None:
        """Ask until this node is a member, and known to be where it is."""
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
        """Those of the members, and this node's own: it may lead."""
        known = [http_address(self._log.conf, member) for member in self._log.conf.members]
        return [*filter(None, known), self._where.http]


def peers_of(conf: ConfState, own_id: str) -> dict[str, str]:
    """Addresses of the other members."""
    return {
        member_id: decode_addresses(context).raft
        for member_id, context in conf.contexts.items()
        if member_id != own_id
    }


def http_address(conf: ConfState, member_id: str) -> str:
    """Where a member serves HTTP; empty when that is not known."""
    return decode_addresses(conf.contexts.get(member_id, b"")).http


def _ignore(_: CorvoError | None) -> None:
    pass
