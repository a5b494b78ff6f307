"""One node of a Raft cluster, without clock, network or disk."""

from collections import deque
from typing import Final, final

from corvo.consensus.log import CONFIGURATION, Entry
from corvo.consensus.raft.apply_queue import ApplyQueue
from corvo.consensus.raft.config import RaftConfig
from corvo.consensus.raft.leader import Leader
from corvo.consensus.raft.log_view import LogView
from corvo.consensus.raft.membership import Change, Membership
from corvo.consensus.raft.messages import (
    APPEND,
    APPEND_REPLY,
    PRE_VOTE,
    PRE_VOTE_REPLY,
    READ_INDEX,
    READ_INDEX_REPLY,
    SNAPSHOT,
    TIMEOUT_NOW,
    VOTE,
    VOTE_REPLY,
    ConfState,
    HardState,
    Message,
    decode_conf_state,
)
from corvo.consensus.raft.quorum import LOST, PENDING, WON, tally
from corvo.consensus.raft.read_index import Read
from corvo.consensus.raft.ready import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    PRE_CANDIDATE,
    PeerStatus,
    RaftStatus,
    ReadState,
    Ready,
    Refused,
    RoleChange,
)
from corvo.consensus.raft.storage import Storage

NO_LIMIT: Final = (1 << 63) - 1
_U64: Final = (1 << 64) - 1


@final
class _Write:
    """A write that is handed out and not yet durable."""

    __slots__ = ("hard_state", "messages", "number")

    def __init__(self, number: int, hard_state: HardState | None) -> None:
        self.number = number
        self.hard_state = hard_state
        self.messages: list[Message] = []  # sent when the write is durable


@final
class Raft:
    """One Raft node, see README.md. Calls do not overlap and return at once.

    The driver calls `step` for received messages, `tick` at regular times and `propose` for
    clients. Then, while `has_ready()`, it takes `ready()` and executes the work in it (`Ready`). It
    calls `persisted` and `applied` when that work is done, in the same order.
    """

    def __init__(self, config: RaftConfig, storage: Storage, applied: int = 0) -> None:
        """Start a node as a follower with the content of `storage`.

        `applied` is the last applied entry, at least `storage.base().index`; later committed
        entries are handed out again. The configuration is that of the newest CONFIGURATION entry in
        the log, or of the base.
        """
        base = storage.base()
        hard_state = storage.hard_state()
        self.config = config
        self.node_id = config.node_id
        self.storage = storage
        self.term = hard_state.term
        self.vote = hard_state.vote
        last_term = storage.term(storage.last_index())
        if self.term < last_term:
            # A write was torn: its entries are on disk, but their term is not.
            self.term = last_term
            self.vote = ""
        self.role = FOLLOWER
        self.leader_id = ""  # leader of this term; empty: unknown
        self.log = LogView(storage, max(hard_state.commit, applied))
        assert base.index <= applied <= self.log.commit, "the applied index is inside the log"
        self.membership = Membership(base.index, base.conf)
        if storage.last_index() > base.index:
            self._append_confs(storage.entries(base.index + 1, storage.last_index() + 1, NO_LIMIT))
        self.membership.applied(applied)
        self._queue = ApplyQueue(applied, config.applying_size_max)
        self._leader: Leader | None = None  # set while this node is the leader
        self._votes: dict[str, bool] = {}  # votes of the present election
        self._force = False  # whether the election is a leadership transfer
        self._ticks = 0  # since the last message of a leader, granted vote, or election
        self._election_timeout = 0  # ticks until this node starts an election
        self._draws = 0
        self._writes: deque[_Write] = deque()
        self._write_number = 0
        self._write_ticks = 0  # with a pending write, since the last completed one
        self._durable_state = (self.term, self.vote)
        self._handed_state = (self.term, self.vote)
        self._handed_commit = self.log.commit
        self._messages: list[Message] = []
        self._messages_after: list[Message] = []  # sent when everything so far is durable
        self._reads: list[ReadState] = []  # confirmed reads that wait for the apply
        self._reads_refused: list[ReadState] = []
        self._reported = (self.role, self.term, self.leader_id)
        self._draw_election_timeout()

    @property
    def conf(self) -> ConfState:
        """The configuration in force: the newest in the log, committed or not."""
        return self.membership.conf

    @property
    def applied_index(self) -> int:
        """Index of the last applied entry."""
        return self._queue.applied

    # Inputs

    def step(self, message: Message) -> None:
        """Process a message from the network."""
        kind = message.type
        if message.to_id != self.node_id:
            return
        if message.term < self.term:
            self._step_older(message)
            return
        if message.term > self.term:
            if kind in (PRE_VOTE, VOTE) and not message.force and self._follows_a_leader():
                self._refuse_vote(message)
                return
            if kind != PRE_VOTE and not (kind == PRE_VOTE_REPLY and not message.reject):
                self._become_follower(message.term, "")
        if kind == APPEND:
            self._handle_append(message)
        elif kind == APPEND_REPLY:
            if self._leader is not None:
                self._leader.handle_append_reply(message)
        elif kind == PRE_VOTE:
            self._handle_pre_vote(message)
        elif kind == VOTE:
            self._handle_vote(message)
        elif kind in (PRE_VOTE_REPLY, VOTE_REPLY):
            self._handle_vote_reply(message)
        elif kind == SNAPSHOT:
            self._handle_snapshot(message)
        elif kind == TIMEOUT_NOW:
            if self.role == FOLLOWER and message.from_id == self.leader_id and self._may_stand():
                self._become_candidate(force=True)
        elif kind == READ_INDEX:
            if self._leader is not None:
                self._leader.read(Read(message.context, message.from_id))
        elif kind == READ_INDEX_REPLY:
            self.read_confirmed(message.context, 0 if message.reject else message.index)

    def tick(self) -> None:
        """Advance time by one tick."""
        if self._writes:
            self._write_ticks += 1
        if self._leader is not None:
            if self._write_ticks >= 2 * self.config.election_ticks and len(self.conf.voters) > 1:
                # The disk does not respond: step down, so that another node can lead.
                self.step_down()
            else:
                self._leader.tick()
            return
        self._ticks += 1
        if self._ticks >= self._election_timeout and self._may_stand():
            self._draw_election_timeout()
            if self._write_ticks < self.config.election_ticks:
                self.campaign()

    def campaign(self) -> None:
        """Start an election now; a pre-vote first avoids an election that this node cannot win."""
        if self.role == LEADER or not self._may_stand():
            return
        if self.conf.voters == [self.node_id]:
            self._become_candidate(force=False)
            return
        self._draw_election_timeout()
        self.role = PRE_CANDIDATE
        self.leader_id = ""
        self._votes = {}
        self._request_votes(PRE_VOTE, self.term + 1)
        self._count_vote(self.node_id, granted=True)

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append an entry; return its (index, term). Leader only.

        The entry is committed when `Ready.committed` has an entry with this index and term; it is
        lost when the entry at this index has another term. Raises Refused, without any effect, if
        this node is not the leader, if a leadership transfer is in progress, or if too much is
        uncommitted.
        """
        return self._leading().propose(data), self.term

    def propose_change(self, change: Change) -> tuple[int, int]:
        """Append a changed configuration; it is in force at once.

        Raises Refused like `propose`, and also before the leader has committed an entry of its
        term, while an earlier change is not applied, to promote a learner that lags, or to remove
        the last voter.
        """
        return self._leading().propose_change(change), self.term

    def read_index(self, context: bytes) -> bool:
        """Request a linearizable read; a ReadState with this context follows.

        Returns False if no leader is known. The request to another leader, or its reply, can be
        lost: retry after a timeout with a new context.
        """
        if self._leader is not None:
            self._leader.read(Read(context, ""))
        elif self.leader_id:
            self.send(Message(READ_INDEX, self.leader_id, context=context))
        else:
            return False
        return True

    def transfer(self, to_id: str) -> None:
        """Transfer the leadership to another voter.

        Proposals are refused until the transfer is done, at most for one election timeout. Raises
        Refused if this node is not the leader or the target is not another voter.
        """
        self._leading().transfer(to_id)

    def persisted(self, number: int) -> None:
        """Record that the writes up to this number are durable."""
        while self._writes and self._writes[0].number <= number:
            write = self._writes.popleft()
            self._messages += write.messages
            if write.hard_state is not None:
                self._durable_state = (write.hard_state.term, write.hard_state.vote)
            self._write_ticks = 0
        was_restoring = self.log.is_restoring()
        self.log.persisted(number)
        if was_restoring and not self.log.is_restoring():
            self._queue.done(self._queue.handed_out)
        if self._leader is not None:
            self._leader.commit()
        elif self.role == CANDIDATE and self._is_state_durable():
            self._count_vote(self.node_id, granted=True)

    def applied(self, index: int) -> None:
        """Record that everything up to index is applied."""
        self._queue.done(index)
        self.membership.applied(self.applied_index)

    def snapshot_failed(self, to_id: str) -> None:
        """Record that the snapshot for a member could not be sent or was refused.

        Every SNAPSHOT message ends with this call or with the reply of the member.
        """
        if self._leader is not None:
            self._leader.snapshot_failed(to_id)

    def unreachable(self, to_id: str) -> None:
        """Record that messages to a member are lost; stops pipelining to it."""
        if self._leader is not None:
            self._leader.unreachable(to_id)

    # Outputs

    def has_ready(self) -> bool:
        """Whether `ready` has work for the driver."""
        return bool(
            self._messages
            or self._messages_after
            or self._reads_refused
            or (self._leader is not None and self._leader.work)
            or self.log.has_new()
            or self._has_committed()
            or (self.term, self.vote) != self._handed_state
            or (self.role, self.term, self.leader_id) != self._reported
            or (self._reads and self._first_read_index() <= self.applied_index)
        )

    def ready(self) -> Ready:
        """Take the work that was added since the last call."""
        if self._leader is not None and self._leader.work:
            self._leader.send()
        ready = Ready()
        self._take_writes(ready)
        ready.messages = self._messages
        self._messages = []
        self._take_committed(ready)
        self._take_reads(ready)
        state = (self.role, self.term, self.leader_id)
        if state != self._reported:
            self._reported = state
            ready.role_change = RoleChange(self.role, self.term, self.leader_id)
        return ready

    def _take_writes(self, ready: Ready) -> None:
        state = (self.term, self.vote)
        has_new = self.log.has_new()
        if state != self._handed_state or (has_new and self.log.commit > self._handed_commit):
            ready.hard_state = HardState(self.term, self.vote, self.log.commit)
            self._handed_state = state
            self._handed_commit = self.log.commit
        if has_new or ready.hard_state is not None:
            self._write_number += 1
            ready.number = self._write_number
            ready.snapshot = self.log.new_snapshot()
            ready.entries = self.log.take_new(ready.number)
            self._writes.append(_Write(ready.number, ready.hard_state))
        if self._writes:
            self._writes[-1].messages += self._messages_after
        else:
            self._messages += self._messages_after
        self._messages_after = []

    def _has_committed(self) -> bool:
        return self._may_apply() > self._queue.handed_out and self._queue.has_room()

    def _take_committed(self, ready: Ready) -> None:
        if self._has_committed():
            low, high = self._queue.handed_out + 1, self._may_apply() + 1
            ready.committed = self.log.entries(low, high, self._queue.room)
            self._queue.hand_out(ready.committed)

    def _may_apply(self) -> int:
        """Index of the newest entry that may be applied: committed, and durable on this node."""
        return min(self.log.commit, self.log.durable)

    def _take_reads(self, ready: Ready) -> None:
        ready.read_states = self._reads_refused
        self._reads_refused = []
        if self._reads:
            waiting: list[ReadState] = []
            for read in self._reads:
                (ready.read_states if read.index <= self.applied_index else waiting).append(read)
            self._reads = waiting

    def _first_read_index(self) -> int:
        index = NO_LIMIT
        for read in self._reads:
            index = min(index, read.index)
        return index

    def trim_limit(self) -> int:
        """Entries after this index must be retained, for a snapshot in transfer that ends there."""
        return NO_LIMIT if self._leader is None else self._leader.trim_limit(NO_LIMIT)

    def status(self) -> RaftStatus:
        """A copy of the status for operators."""
        peers: dict[str, PeerStatus] = {}
        transferee = ""
        if self._leader is not None:
            peers = self._leader.status()
            transferee = self._leader.transferee
        return RaftStatus(
            role=self.role,
            term=self.term,
            vote=self.vote,
            leader_id=self.leader_id,
            transferee=transferee,
            last_index=self.log.last_index(),
            durable=self.log.durable,
            commit=self.log.commit,
            applied=self.applied_index,
            conf=self.conf,
            peers=peers,
        )

    # Calls of the leader

    def send(self, message: Message) -> None:
        """Send a message of this node and term, as soon as term and vote are durable."""
        message.from_id = self.node_id
        if message.term == 0:
            message.term = self.term
        if self._is_state_durable():
            self._messages.append(message)
        else:
            self._messages_after.append(message)

    def read_confirmed(self, context: bytes, index: int) -> None:
        """Record that a read may be served when index is applied; 0 = it was not confirmed."""
        if index:
            self._reads.append(ReadState(context, index))
        else:
            self._reads_refused.append(ReadState(context, 0))

    def step_down(self) -> None:
        """Stop being the leader, in the same term."""
        self._become_follower(self.term, "")

    # Roles

    def _leading(self) -> Leader:
        if self._leader is None:
            raise Refused(f"not the leader; the leader is {self.leader_id or 'unknown'}")
        return self._leader

    def _become_follower(self, term: int, leader_id: str) -> None:
        if term > self.term:
            self.term = term
            self.vote = ""
        self.leader_id = leader_id
        if self._leader is not None:
            ended, self._leader = self._leader, None
            ended.end()
        self.role = FOLLOWER
        self._votes = {}
        self._draw_election_timeout()

    def _become_candidate(self, force: bool) -> None:
        self._draw_election_timeout()
        self.role = CANDIDATE
        self.leader_id = ""
        self.term += 1
        self.vote = self.node_id
        self._votes = {}
        # The vote of this node for itself counts when it is durable, see `persisted`.
        self._force = force
        self._request_votes(VOTE, self.term)

    def _become_leader(self) -> None:
        self.role = LEADER
        self.leader_id = self.node_id
        self._votes = {}
        self._leader = Leader(self)

    def _draw_election_timeout(self) -> None:
        """Draw a random election timeout, between one and two times the configured one."""
        self._draws += 1
        z = (self.config.seed + self._draws * 0x9E3779B97F4A7C15) & _U64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _U64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _U64
        ticks = self.config.election_ticks
        self._election_timeout = ticks + (z ^ (z >> 31)) % ticks
        self._ticks = 0

    # Elections

    def _may_stand(self) -> bool:
        """Whether this node may start an election: it is a voter and has a complete log."""
        return self.membership.may_lead(self.node_id) and not self.log.is_restoring()

    def _is_state_durable(self) -> bool:
        return self._durable_state == (self.term, self.vote)

    def _follows_a_leader(self) -> bool:
        """Whether there is a live leader; then this node helps no other candidate."""
        if self.role == LEADER:
            return True
        return self.leader_id != "" and self._ticks < self.config.election_ticks

    def _request_votes(self, kind: int, term: int) -> None:
        for node_id in self.conf.voters:
            if node_id != self.node_id:
                message = Message(kind, node_id, term=term, index=self.log.last_index())
                message.log_term = self.log.last_term()
                message.force = kind == VOTE and self._force
                self.send(message)

    def _handle_pre_vote(self, message: Message) -> None:
        """Reply to a pre-vote; this changes no state and no timeout."""
        if message.term > self.term and self.log.is_current(message.index, message.log_term):
            self.send(Message(PRE_VOTE_REPLY, message.from_id, term=message.term))
        else:
            self._refuse_vote(message)

    def _handle_vote(self, message: Message) -> None:
        """Reply to a vote request, also of a non-voter: this configuration can be outdated."""
        is_free = self.vote == message.from_id or (self.vote == "" and self.leader_id == "")
        if is_free and self.log.is_current(message.index, message.log_term):
            self.vote = message.from_id
            self._become_follower(self.term, "")
            self.send(Message(VOTE_REPLY, message.from_id))
        else:
            self._refuse_vote(message)

    def _refuse_vote(self, message: Message) -> None:
        kind = PRE_VOTE_REPLY if message.type == PRE_VOTE else VOTE_REPLY
        self.send(Message(kind, message.from_id, reject=True))

    def _handle_vote_reply(self, message: Message) -> None:
        asked = PRE_CANDIDATE if message.type == PRE_VOTE_REPLY else CANDIDATE
        if self.role != asked:
            return
        if asked == PRE_CANDIDATE and not message.reject and message.term != self.term + 1:
            return
        self._count_vote(message.from_id, granted=not message.reject)

    def _count_vote(self, node_id: str, granted: bool) -> None:
        self._votes.setdefault(node_id, granted)
        result = tally(self.conf.voters, self._votes)
        if result == PENDING:
            return
        if result == LOST:
            self._become_follower(self.term, "")
        elif self.role == PRE_CANDIDATE:
            self._become_candidate(force=False)
        else:
            assert result == WON
            self._become_leader()

    # Following

    def _step_older(self, message: Message) -> None:
        """Reply to a stale term only where silence would make the sender retry for ever."""
        kind = message.type
        if kind in (APPEND, SNAPSHOT):
            self.send(Message(APPEND_REPLY, message.from_id, reject=True))
        elif kind in (PRE_VOTE, VOTE):
            self._refuse_vote(message)

    def _follow(self, message: Message) -> None:
        """Follow the sender, which is the leader of the term."""
        assert self.role != LEADER, "one leader in a term"
        if self.role != FOLLOWER or self.leader_id != message.from_id:
            self._become_follower(self.term, message.from_id)
        self._ticks = 0

    def _handle_append(self, message: Message) -> None:
        self._follow(message)
        log = self.log
        previous = message.index
        last_index = previous + len(message.entries)
        entries = message.entries
        if previous < log.commit:
            # Committed entries are equal on the leader, so they are skipped.
            entries = entries[log.commit - previous :]
            last_index = max(last_index, log.commit)
        elif log.term(previous) != message.log_term:
            hint = log.find_match(previous, message.log_term)
            reply = self._append_reply(message, previous)
            reply.reject = True
            reply.reject_hint = hint
            reply.log_term = max(log.term(hint), 0)
            self.send(reply)
            return
        self._append_new(entries)
        log.commit_to(min(message.commit, last_index))
        self._confirm(message, last_index, bool(entries))

    def _append_new(self, entries: list[Entry]) -> None:
        """Append new entries; a conflicting entry and everything after it is truncated."""
        for i in range(len(entries)):
            if self.log.term(entries[i].index) != entries[i].term:
                new = entries[i:] if i else entries
                self.membership.truncate(new[0].index - 1)
                self.log.append(new)
                self._append_confs(new)
                return

    def _append_confs(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.kind == CONFIGURATION:
                self.membership.append(entry.index, decode_conf_state(entry.data))

    def _confirm(self, message: Message, index: int, wait: bool) -> None:
        """Confirm that the log matches the leader's up to index.

        With `wait` the reply is sent when the entries are durable. Otherwise it is sent at once for
        the durable part, so heartbeats get a reply even if the disk is slow.
        """
        if wait and index > self.log.durable:
            reply = self._append_reply(message, index)
            reply.from_id = self.node_id
            reply.term = self.term
            self._messages_after.append(reply)
        else:
            self.send(self._append_reply(message, min(index, self.log.durable)))

    def _append_reply(self, message: Message, index: int) -> Message:
        reply = Message(APPEND_REPLY, message.from_id, index=index)
        reply.session = message.session
        reply.round = message.round
        return reply

    def _handle_snapshot(self, message: Message) -> None:
        """Handle a snapshot whose data is received; restore it if it is ahead of the log."""
        self._follow(message)
        snapshot = message.snapshot
        assert snapshot is not None
        log = self.log
        if snapshot.index <= log.commit:
            self._confirm(message, log.commit, wait=False)
        elif log.term(snapshot.index) == snapshot.term:
            log.commit_to(snapshot.index)
            self._confirm(message, snapshot.index, wait=True)
        else:
            log.restore(snapshot)
            self.membership.restore(snapshot.index, snapshot.conf)
            self._queue.restore(snapshot.index)
            self._confirm(message, snapshot.index, wait=True)
