"""The parts that only a node of a cluster has, wired together.

transport -> log -> leadership -> pipeline, scheduler, housekeeping
HTTP -> gate -> router, or the leader
members: joining, promotion, addresses
"""

import asyncio
import logging
from typing import Any, Final

from corvo._fast.http.exchange import Request
from corvo.config import Address, Config
from corvo.consensus.cluster.discovery import Discovery, raft_tls
from corvo.consensus.cluster.divergence import DivergenceCheck
from corvo.consensus.cluster.membership import (
    Members,
    addresses,
    decode_addresses,
    encode_addresses,
    http_address,
    node_name,
    peers_of,
    raft_address,
)
from corvo.consensus.cluster.peer_connection import Channel
from corvo.consensus.cluster.snapshots import Snapshots
from corvo.consensus.cluster.transport import Transport
from corvo.consensus.raft.messages import ConfState, decode_conf_state
from corvo.consensus.raft.ready import LEADER, PeerStatus, RaftStatus
from corvo.consensus.raft_log import ELECTION_TICKS, TICK_S, RaftLog, raft_id
from corvo.engine.leadership import Leadership
from corvo.engine.pipeline import Pipeline
from corvo.errors import ConfigError, Conflict
from corvo.fsm.machine import Machine
from corvo.limits import SECOND_NS
from corvo.net.forward.gate import Gate
from corvo.net.forward.proxy import Proxy
from corvo.net.forward.stream_relay import StreamRelays
from corvo.net.http.router import Router
from corvo.net.http.server import Server
from corvo.net.hub import StreamHub
from corvo.platform.clock import Clock
from corvo.platform.periodic import Periodic
from corvo.storage.data_dir import Identity

logger = logging.getLogger(__name__)

_HAND_OVER_S: Final = 2.0
_POLL_S: Final = 0.005
_COMPARE_S: Final = 1.0
_MISSING_AFTER_NS: Final = int(2 * ELECTION_TICKS * TICK_S * SECOND_NS)
STATES: Final = ("Follower", "Candidate", "Candidate", "Leader")


class Cluster:
    """The parts of a node that communicate with other nodes."""

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        identity: Identity,
        log: RaftLog,
        machine: Machine,
        pipeline: Pipeline,
        leadership: Leadership,
        discovery: Discovery,
    ) -> None:
        self._config = config
        self._loop = loop
        self._clock = clock
        self._identity = identity
        self._log = log
        self._machine = machine
        self._pipeline = pipeline
        self.loading = False  # a snapshot is being loaded; changed by the node
        self.leadership = leadership
        self._discovery = discovery
        self.members = Members(config, identity.cluster_id, log, loop, discovery)
        self.gate: Gate | None = None
        self.proxy: Proxy | None = None
        self._relays: StreamRelays | None = None
        self.transport = Transport(
            raft_id(identity),
            identity.cluster_id,
            identity.incarnation,
            config.cluster_secret.encode(),
            str(raft_address(config)),
            log.take_message,
            log.peer_unreachable,
            clock=clock,
            on_channel=self._on_channel,
            tls=discovery.raft_tls,
        )
        self.divergence = DivergenceCheck(machine, self.transport.send_state_hash)
        self.transport.on_state = self.divergence.compare
        self._comparer = Periodic(loop, _COMPARE_S, self._compare)
        self.snapshots = Snapshots(
            config.data_dir,
            log.node_id,
            log,
            self.transport.open_channel,
            clock,
            cluster_id=identity.cluster_id,
        )
        log.peers = self.transport
        log.snapshots = self.snapshots
        log.on_members = self._on_members

    # Start and stop.

    async def listen(self, http: Address) -> None:
        """Open the port for other nodes; `http` is the address of the API."""
        bind = raft_address(self._config)
        try:
            await self.transport.start()
        except OSError as error:
            raise ConfigError(f"cannot listen on {bind} for other nodes: {error}") from None
        where = addresses(self._config, http)
        if bind.port == 0 and self._config.raft_advertise is None:
            host, _, _ = where.raft.rpartition(":")
            where = where._replace(raft=f"{host}:{self.transport.port}")
        self._where = where
        self.transport.api = where.http
        self._log.first_conf = self._first_conf()

    def _first_conf(self) -> ConfState:
        """The members in the state store. If it has none, a new cluster begins with this node,
        unless the node joins an existing one."""
        stored = self._machine.configuration
        if stored:
            return decode_conf_state(stored)
        if self._identity.joined:
            return ConfState([])
        own = self._log.node_id
        return ConfState([own], contexts={own: encode_addresses(self._where)})

    def start(self) -> None:
        """Join the cluster; the log has started."""
        self.snapshots.clean()
        self.members.start(self._where)
        self._comparer.start()
        self._compare()

    def _compare(self) -> None:
        """Once a second: check that all nodes have the same state. A leader whose state differs
        transfers leadership, if there is another node that can lead."""
        self.divergence.tick()
        if self.is_wrong and self._log.leading:
            try:
                self._log.transfer()
            except Conflict as error:
                logger.warning("the state of this leader is wrong: %s", error)

    @property
    def is_wrong(self) -> bool:
        """Whether the state of this node differs from that of a majority."""
        return self._log.started and self.divergence.is_wrong(self._log.conf.voters)

    def guard(self, router: Router, server: Server, hub: StreamHub) -> None:
        """Put the gate in front of the router, and forward requests to the leader."""
        proxy = self.proxy = Proxy(
            self._loop, self._clock.elapsed_ns, self._on_returned, tls=self._discovery.api_trust
        )
        self.gate = Gate(
            router.handle,
            router.find,
            self._log,
            self.leadership,
            self._leader_address,
            proxy.forward,
            self._loop,
            self._clock.elapsed_ns,
            server.flush,
        )
        server.handle = self.gate.handle
        self._pipeline.on_lost = self.gate.again
        self._relays = hub.lifecycles.relays = StreamRelays(
            self._loop, self._discovery.stream_trust
        )
        hub.lifecycles.leader = self.leader_url
        self.leadership.on_change += [self._turn_proxy, hub.job_output.cut_all]

    def _turn_proxy(self) -> None:
        """Forward requests and streams to the present leader."""
        leader_id = self._log.leader_id
        if not leader_id and self._relays is not None:
            self._relays.turn_to("")  # it may be cut off, and would never close the streams
        if self.proxy is not None and leader_id:
            own = leader_id == self._log.node_id
            address = "" if own else http_address(self._log.conf, leader_id)
            self.proxy.turn_to(address)
            if self._relays is not None:
                self._relays.turn_to(address)

    def _on_returned(self, request: Request, until_ns: int) -> None:
        assert self.gate is not None
        self.gate.returned(request, until_ns)

    def renew_certificate(self) -> None:
        """Reload the certificate for other nodes, if there is one. Raises ConfigError and keeps
        the old one if the files are not valid."""
        shown = self._discovery.raft_tls
        if shown is not None and raft_tls(self._config) is not None:
            shown.renew(self._config.raft_tls_cert, self._config.raft_tls_key)

    def _leader_address(self) -> str:
        """Where the leader serves HTTP; empty if there is none or its address is unknown."""
        leader_id = self._log.leader_id
        return http_address(self._log.conf, leader_id) if leader_id else ""

    def leader_url(self) -> str | None:
        """URL of the leader; None = this node, empty = unknown."""
        if self.leadership.serving:
            return None
        leader_id = self._log.leader_id
        if leader_id in ("", self._log.node_id):
            return ""
        address = http_address(self._log.conf, leader_id)
        return address if not address or "://" in address else f"http://{address}"

    def drain(self) -> None:
        """The server stops: end forwarded requests that wait for jobs."""
        if self.proxy is not None:
            self.proxy.drain()

    async def hand_over(self) -> None:
        """Before a stop: transfer leadership, if another node can lead."""
        if not self._log.leading or self._log.conf.voters == [self._log.node_id]:
            return
        try:
            self._log.transfer()
            async with asyncio.timeout(_HAND_OVER_S):
                while self._log.leader_id in ("", self._log.node_id):
                    await asyncio.sleep(_POLL_S)
        except Conflict as error:
            logger.warning("stopping as the leader: %s", error)
        except TimeoutError:
            logger.warning("stopping as the leader: no other node took over in time")

    async def close(self) -> None:
        """Stop all parts and close their connections."""
        self._comparer.close()
        self.leadership.close()
        if self.gate is not None:
            self.gate.close()
        if self.proxy is not None:
            await self.proxy.close()
        self.members.close()
        await self.snapshots.close()
        await self.transport.close()

    # Between transport and log.

    def _on_channel(self, channel: Channel) -> None:
        if self._log.started:
            self.snapshots.accept(channel)
        else:
            channel.close()

    def _on_members(self, conf: ConfState, index: int) -> None:
        own = self._log.node_id
        incarnations = {member: member.rpartition("/")[2] for member in conf.members}
        self.transport.set_peers(peers_of(conf, own), index, incarnations)
        self.divergence.forget(conf.members)

    # Status.

    def status(self) -> dict[str, Any]:
        """Fields of /cluster/status that replace or follow those of a single server."""
        raft = self._log.status()
        conf = raft.conf
        leader = raft.leader_id
        lone = leader == self._log.node_id and not self.leadership.serving
        missing = [peer for node_id, peer in raft.peers.items() if self._is_missing(node_id, peer)]
        health = "no-leader" if not leader or lone else "degraded" if missing else "healthy"
        if self.divergence.diverged:
            health = "diverged"
        return {
            "mode": "cluster",
            "status": health,
            "state": STATES[raft.role],
            "cluster_id": self._identity.cluster_id,
            "leader_id": node_name(leader),
            "leader_addr": http_address(conf, leader),
            "term": raft.term,
            "applied_index": self._machine.applied_index,
            "commit_index": raft.commit,
            "durable_index": raft.durable,
            "last_index": raft.last_index,
            "state_hash": self._machine.hash.hex(),
            "state_is_wrong": self.is_wrong,
            "serving": self.leadership.serving,
            "transferring_to": node_name(raft.transferee),
            "requests_held": 0 if self.gate is None else self.gate.held,
            "requests_passed_on": 0 if self.proxy is None else self.proxy.passed_on,
            "snapshot": {
                "loading": self.loading,
                "prepared": self.snapshots.prepared,
                "sent": self.snapshots.sent,
                "failed": self.snapshots.failed,
                "received": self.snapshots.received,
                "installed": self.snapshots.installed,
                "sending": {
                    node_name(member): progress._asdict()
                    for member, progress in sorted(self.snapshots.sending.items())
                },
            },
            "peer_refusals": {
                reason: count for reason, count in self.transport.refusals.items() if count
            },
            "nodes": [self._node(member, raft) for member in conf.members],
        }

    def _is_missing(self, node_id: str, peer: PeerStatus) -> bool:
        """Whether a peer is silent. A new leader has no answers yet, but it has heard votes and
        earlier messages."""
        heard_ns = self._log.heard_ns.get(node_id)
        return not peer.active and (
            heard_ns is None or self._log.now_ns() - heard_ns > _MISSING_AFTER_NS
        )

    def _connection(self, member: str) -> dict[str, Any]:
        """State of the connection to another node."""
        for peer in self.transport.status():
            if peer.node_id == member:
                trouble = {} if peer.connected else {"error": peer.error}
                round_trip_ms = peer.round_trip_ns / 1e6
                return {"connected": peer.connected, "round_trip_ms": round_trip_ms} | trouble
        return {}

    def _node(self, member: str, raft: RaftStatus) -> dict[str, Any]:
        """One row of the list of nodes. Only the leader knows the progress of the others."""
        where = decode_addresses(raft.conf.contexts[member])
        own = member == self._log.node_id
        is_leader = member == raft.leader_id
        voter = member in raft.conf.voters
        differs = member in self.divergence.diverged
        row: dict[str, Any] = {
            "id": node_name(member),
            "member_id": member,
            "address": where.raft,
            "http_addr": where.http,
            "role": "leader" if is_leader else "follower" if voter else "learner",
            "voter": voter,
            "self": own,
            "state_differs": differs,
        }
        if own:
            lag = raft.commit - self._machine.applied_index
            return row | {"status": "healthy", "lag": lag, "last_contact_ms": 0}
        row |= self._connection(member)
        heard_ns = self._log.heard_ns.get(member)
        if heard_ns is not None:
            passed_ns = self._log.now_ns() - heard_ns
            row["last_contact_ms"] = passed_ns // 1_000_000
        peer = raft.peers.get(member)
        if raft.role == LEADER and peer is not None:
            row |= {
                "status": "unreachable" if self._is_missing(member, peer) else "healthy",
                "lag": raft.last_index - peer.match,
                "match_index": peer.match,
                "next_index": peer.next,
                "inflight": peer.inflight,
                "progress": peer.state,
                "snapshot_index": peer.snapshot,
            }
        return row
