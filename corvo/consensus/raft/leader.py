"""Leader state: replication, commit, read confirmation, membership changes.

Messages are not sent immediately. Events set `work`, and `send` creates at most a few messages per
member when the driver takes the next Ready, so all proposals of one driver turn are batched.
"""

from collections import deque
from typing import TYPE_CHECKING, final

from corvo.consensus.log import CONFIGURATION, FRAME, Entry
from corvo.consensus.raft.membership import PROMOTE, Change, changed
from corvo.consensus.raft.messages import (
    APPEND,
    READ_INDEX_REPLY,
    SNAPSHOT,
    TIMEOUT_NOW,
    Message,
    encode_conf_state,
)
from corvo.consensus.raft.progress import PROBE, REPLICATE, STATE_NAMES, Progress
from corvo.consensus.raft.progress import SNAPSHOT as IN_SNAPSHOT
from corvo.consensus.raft.quorum import majority, majority_has
from corvo.consensus.raft.read_index import Read, ReadRounds
from corvo.consensus.raft.ready import PeerStatus, Refused

if TYPE_CHECKING:
    from corvo.consensus.raft.core import Raft


@final
class Leader:
    """One leadership; created when an election is won and dropped when it ends."""

    def __init__(self, raft: "Raft") -> None:
        """Append a no-op: a leader can determine the commit index only with an entry of its own
        term."""
        self.transferee = ""  # target of a leadership transfer
        self.work = True  # `send` may have something to do
        self._raft = raft
        self._log = raft.log
        self._peers: list[Progress] = []  # all members except this node, ordered by id
        self._reads = ReadRounds()
        self._ticks = 0  # since the last check of the quorum
        self._heartbeat_ticks = 0
        self._transfer_ticks = 0
        self._uncommitted: deque[tuple[int, int]] = deque()  # index and size of each proposal
        self._uncommitted_size = 0
        self._start_index = self._log.last_index() + 1
        self._log.append([Entry(self._start_index, raft.term, b"")])
        self._update_peers()

    # Members

    def _update_peers(self) -> None:
        """Update the peers to the configuration in force."""
        peers: list[Progress] = []
        for node_id in sorted(self._raft.membership.conf.members):
            if node_id != self._raft.node_id:
                peer = self._peer(node_id)
                if peer is None:
                    last_index = self._log.last_index()
                    peer = Progress(node_id, last_index, self._start_index)
                peers.append(peer)
        self._peers = peers
        if not self._raft.membership.is_voter(self.transferee):
            self.transferee = ""
        self.work = True

    def _peer(self, node_id: str) -> Progress | None:
        for peer in self._peers:
            if peer.node_id == node_id:
                return peer
        return None

    def _of_voters(self, mine: int, rounds: bool) -> list[int]:
        """One number per voter: its confirmed read round, or its durable index."""
        values: list[int] = []
        membership = self._raft.membership
        if membership.is_voter(self._raft.node_id):
            values.append(mine)
        for peer in self._peers:
            if membership.is_voter(peer.node_id):
                values.append(peer.round if rounds else peer.match)
        return values

    # Proposals

    def propose(self, data: bytes) -> int:
        """Append an entry and return its index. Raises Refused."""
        if self.transferee:
            raise Refused(f"a leadership transfer to {self.transferee!r} is in progress")
        config = self._raft.config
        size = len(data)
        if self._uncommitted and (
            len(self._uncommitted) >= config.uncommitted_max
            or self._uncommitted_size + size > config.uncommitted_size_max
        ):
            raise Refused("too many entries are uncommitted")
        return self._append_entry(data, FRAME)

    def propose_change(self, change: Change) -> int:
        """Append a new configuration, in force at once. Raises Refused."""
        raft = self._raft
        if self.transferee:
            raise Refused(f"a leadership transfer to {self.transferee!r} is in progress")
        if not self._is_established():
            raise Refused("no entry of this term is committed yet")
        if raft.membership.index > raft.applied_index:
            raise Refused("the previous change is not applied yet")
        conf = changed(raft.membership.conf, change)
        if change.kind == PROMOTE:
            peer = self._peer(change.node_id)
            if peer is None or not self._has_caught_up(peer):
                raise Refused(f"{change.node_id!r} has not caught up yet")
        index = self._append_entry(encode_conf_state(conf), CONFIGURATION)
        raft.membership.append(index, conf)
        self._update_peers()
        self.commit()
        return index

    def _append_entry(self, data: bytes, kind: int) -> int:
        index = self._log.last_index() + 1
        self._log.append([Entry(index, self._raft.term, data, kind)])
        self._uncommitted.append((index, len(data)))
        self._uncommitted_size += len(data)
        self.work = True
        return index

    def _has_caught_up(self, peer: Progress) -> bool:
        lag = self._log.last_index() - peer.match
        return peer.active and peer.state == REPLICATE and lag <= self._raft.config.promote_lag_max

    def _is_established(self) -> bool:
        """Whether an entry of this term is committed, and so all entries before it."""
        return self._log.commit >= self._start_index

    def commit(self) -> None:
        """Commit entries that are durable on a majority of the voters, including this node."""
        index = majority_has(self._of_voters(self._log.durable, rounds=False))
        # An entry of an older term is not committed by counting replicas, because another leader
        # could overwrite it. It is committed with the first later entry of this term.
        if self._log.term(index) != self._raft.term or not self._log.commit_to(index):
            return
        while self._uncommitted and self._uncommitted[0][0] <= index:
            self._uncommitted_size -= self._uncommitted.popleft()[1]
        self.work = True

    # Replies

    def handle_append_reply(self, message: Message) -> None:
        """Handle the reply of a member to an append, a heartbeat or a snapshot."""
        peer = self._peer(message.from_id)
        if peer is None or message.session != peer.session:
            return
        self.work = True
        peer.hear()
        if message.round > peer.round:
            peer.round = message.round
            self._confirm_reads()
        if message.reject:
            hint = self._log.find_match(message.reject_hint, message.log_term)
            peer.refused(message.index, hint)
            return
        if message.index > self._log.last_index():
            return
        is_new = peer.confirmed(message.index)
        if peer.state == IN_SNAPSHOT and (
            peer.match >= peer.snapshot_index or peer.match + 1 >= self._log.first_index()
        ):
            peer.become(PROBE)
            peer.confirmed(peer.match)
        if is_new:
            self.commit()
            if peer.node_id == self.transferee:
                self._hand_over(peer)

    def snapshot_failed(self, node_id: str) -> None:
        """Retry from the confirmed entries of a member after a failed snapshot."""
        peer = self._peer(node_id)
        if peer is not None and peer.state == IN_SNAPSHOT:
            peer.become(PROBE)
            peer.active = False  # until its next message
            self.work = True

    def unreachable(self, node_id: str) -> None:
        """Probe a member after lost appends, to find out what it received."""
        peer = self._peer(node_id)
        if peer is not None and peer.state == REPLICATE:
            peer.become(PROBE)
            self.work = True

    # Reads

    def read(self, read: Read) -> None:
        """Add a read to the next round, which confirms the leadership."""
        self._reads.add(read)
        self.work = True

    def _begin_round(self) -> None:
        self._reads.begin(self._log.commit)
        for peer in self._peers:
            peer.heartbeat_due = True
        self._confirm_reads()

    def _confirm_reads(self) -> None:
        number = majority_has(self._of_voters(self._reads.number, rounds=True))
        for over in self._reads.confirmed(number):
            for read in over.reads:
                self._answer(read, over.index)

    def _answer(self, read: Read, index: int) -> None:
        if read.from_id == "":
            self._raft.read_confirmed(read.context, index)
            return
        reply = Message(READ_INDEX_REPLY, read.from_id, index=index, context=read.context)
        reply.reject = index == 0
        self._raft.send(reply)

    def end(self) -> None:
        """Fail the pending reads at the end of the leadership."""
        for read in self._reads.drop():
            self._answer(read, 0)

    # Leadership transfer

    def transfer(self, to_id: str) -> None:
        """Transfer the leadership to a voter when it has the whole log. Raises Refused."""
        peer = self._peer(to_id)
        if peer is None or not self._raft.membership.is_voter(to_id):
            raise Refused(f"{to_id!r} is not another voter")
        if self.transferee != to_id:
            self.transferee = to_id
            self._transfer_ticks = 0
            self._hand_over(peer)

    def _hand_over(self, peer: Progress) -> None:
        if peer.match == self._log.last_index():
            self._raft.send(Message(TIMEOUT_NOW, peer.node_id))

    def _retire(self) -> None:
        """Step down after the committed removal of this node; the best voter takes over."""
        best: Progress | None = None
        for peer in self._peers:
            is_better = best is None or peer.match > best.match
            if peer.active and is_better and self._raft.membership.is_voter(peer.node_id):
                best = peer
        if best is not None:
            self._raft.send(Message(TIMEOUT_NOW, best.node_id))
        self._raft.step_down()

    # Time

    def tick(self) -> None:
        """Advance time by one tick: heartbeats, and the check of the quorum."""
        config = self._raft.config
        self._ticks += 1
        self._heartbeat_ticks += 1
        if self.transferee:
            self._transfer_ticks += 1
            if self._transfer_ticks >= config.election_ticks:
                self.transferee = ""
        if self._ticks >= config.election_ticks:
            self._ticks = 0
            if not self._hears_quorum():
                self._raft.step_down()
                return
        if self._heartbeat_ticks >= config.heartbeat_ticks:
            self._heartbeat_ticks = 0
            self.work = True
            for peer in self._peers:
                peer.heartbeat_due = True

    def _hears_quorum(self) -> bool:
        """Whether a majority has sent messages since the last check."""
        membership = self._raft.membership
        heard = 1 if membership.is_voter(self._raft.node_id) else 0
        for peer in self._peers:
            if peer.check() and membership.is_voter(peer.node_id):
                heard += 1
        return heard >= majority(len(membership.conf.voters))

    # Sending

    def send(self) -> None:
        """Send the messages for all pending work. This can end the leadership."""
        self.work = False
        if self._reads.are_waiting and self._is_established():
            self._begin_round()
        for peer in self._peers:
            self._send_to(peer)
        raft = self._raft
        if self._log.commit >= raft.membership.index and not raft.membership.is_voter(raft.node_id):
            self._retire()

    def _send_to(self, peer: Progress) -> None:
        log = self._log
        if peer.state != IN_SNAPSHOT and log.term(peer.next - 1) == -1:
            self._send_snapshot(peer)
        elif peer.state == PROBE and not peer.probing:
            self._send_append(peer)
        elif peer.state == REPLICATE:
            config = self._raft.config
            while peer.next <= log.last_index() and peer.has_window(
                config.inflight_max, config.inflight_size_max
            ):
                self._send_append(peer)
            if peer.commit < min(log.commit, peer.next - 1):
                self._send_heartbeat(peer)
        if peer.heartbeat_due:
            self._send_heartbeat(peer)

    def _send_append(self, peer: Progress) -> None:
        """Send entries from `next` on, as many as fit."""
        log = self._log
        entries: list[Entry] = []
        last_index = log.last_index()
        if peer.next <= last_index:
            entries = log.entries(peer.next, last_index + 1, self._raft.config.append_size_max)
        self._send_entries(peer, peer.next - 1, entries)
        size = 0
        for entry in entries:
            size += len(entry.data)
        peer.sent(peer.next - 1 + len(entries), size)

    def _send_heartbeat(self, peer: Progress) -> None:
        """Send an append without entries, after the last entry that the member should have.

        If that is unknown, it is sent after index 0, which matches every log.
        """
        previous = peer.next - 1
        if peer.state == IN_SNAPSHOT or self._log.term(previous) == -1:
            previous = 0
        self._send_entries(peer, previous, [])

    def _send_entries(self, peer: Progress, previous: int, entries: list[Entry]) -> None:
        log = self._log
        message = Message(APPEND, peer.node_id, index=previous, entries=entries)
        message.log_term = log.term(previous) if previous else 0
        message.commit = log.commit
        message.session = peer.session
        message.round = self._reads.number
        self._raft.send(message)
        peer.commit = max(peer.commit, min(log.commit, previous + len(entries)))
        peer.heartbeat_due = False

    def _send_snapshot(self, peer: Progress) -> None:
        """Send a snapshot, because the next entry of the member is trimmed."""
        snapshot = self._raft.storage.snapshot()
        if snapshot is None or not peer.active:
            return
        assert snapshot.index + 1 >= self._log.first_index(), "the log continues after the snapshot"
        message = Message(SNAPSHOT, peer.node_id, snapshot=snapshot)
        message.session = peer.session
        message.round = self._reads.number
        self._raft.send(message)
        peer.become_snapshot(snapshot.index)

    # Status

    def trim_limit(self, limit: int) -> int:
        """Lower the limit to the lowest index of a snapshot in transfer."""
        for peer in self._peers:
            if peer.state == IN_SNAPSHOT:
                limit = min(limit, peer.snapshot_index)
        return limit

    def status(self) -> dict[str, PeerStatus]:
        """The status of every other member, by id."""
        return {
            peer.node_id: PeerStatus(
                learner=not self._raft.membership.is_voter(peer.node_id),
                state=STATE_NAMES[peer.state],
                match=peer.match,
                next=peer.next,
                inflight=peer.inflight,
                snapshot=peer.snapshot_index,
                active=peer.active,
                lost=peer.lost,
            )
            for peer in self._peers
        }
