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
    """Handed out, and not known to be durable."""

    __slots__ = ("hard_state", "messages", "number")

    def __init__(self, number: int, hard_state: HardState | None) -> None:
        self.number = number
        self.hard_state = hard_state
        self.messages: list[Message] = []  # may leave when it is


@final
class Raft:
    """See README.md. One call at a time; every call returns at once.

    The driver's turn: `step` what arrived, `tick` when time has passed, `propose` what clients
    want; then, while `has_ready()`: take `ready()` and do what it says (`Ready`). The calls
    `persisted` and `applied` come when that work is done, in the order in which it was given.
    """

    def __init__(self, config: RaftConfig, storage: Storage, applied: int = 0) -> None:
        """A node as it comes back from a stop: a follower with what `storage` has.

        `applied` is the last entry whose effect the state machine has; entries above it are
        handed out again. It is at least `storage.base().index`. Members are those of the newest
        CONFIGURATION entry in the log, else of the base.
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
            # The end of a torn write: its entries are here, the term they came with is not.
            self.term = last_term
            self.vote = ""
        self.role = FOLLOWER
        self.leader_id = ""  # who leads this term; empty: unknown
        self.log = LogView(storage, max(hard_state.commit, applied))
        assert base.index <= applied <= self.log.commit, "the state machine ends in the log"
        self.membership = Membership(base.index, base.conf)
        if storage.last_index() > base.index:
            self._learn_members(storage.entries(base.index + 1, storage.last_index() + 1, NO_LIMIT))
        self.membership.applied(applied)
        self._queue = ApplyQueue(applied, config.applying_size_max)
        self._leader: Leader | None = None  # while this node leads
        self._votes: dict[str, bool] = {}  # while it stands for election
        self._force = False  # it stands because the leader asked it to
        self._ticks = 0  # since the last word from a leader, vote, or attempt to be elected
        self._election_timeout = 0  # ticks after which it stands for election
        self._draws = 0
        self._writes: deque[_Write] = deque()
        self._write_number = 0
        self._write_ticks = 0  # since a write was outstanding and none was finished
        self._durable_state = (self.term, self.vote)
        self._handed_state = (self.term, self.vote)
        self._handed_commit = self.log.commit
        self._messages: list[Message] = []
        self._messages_after: list[Message] = []  # once all up to now is durable
        self._reads: list[ReadState] = []  # confirmed, waiting for the apply
        self._reads_refused: list[ReadState] = []
        self._reported = (self.role, self.term, self.leader_id)
        self._draw_election_timeout()

    @property
    def conf(self) -> ConfState:
        """The configuration in force: the newest in the log, committed or not."""
        return self.membership.conf

    @property
    def applied_index(self) -> int:
        """The newest entry that the state machine has applied."""
        return self._queue.applied

    # Inputs

    def step(self, message: Message) -> None:
        """Take a message that came over the network."""
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
        """Some time has passed: the same for every tick."""
        if self._writes:
            self._write_ticks += 1
        if self._leader is not None:
            if self._write_ticks >= 2 * self.config.election_ticks and len(self.conf.voters) > 1:
                # The disk does not answer. Others can go on; this node cannot.
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
        """Stand for election now, without waiting for the time-out.

        Others are asked first whether they would agree, so that a node that cannot win disturbs
        nobody.
        """
        if self.role == LEADER or not self._may_stand():
            return
        if self.conf.voters == [self.node_id]:
            self._become_candidate(force=False)
            return
        self._draw_election_timeout()
        self.role = PRE_CANDIDATE
        self.leader_id = ""
        self._votes = {}
        self._ask_for_votes(PRE_VOTE, self.term + 1)
        self._count_vote(self.node_id, granted=True)

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append an entry; returns its (index, term). Leader only.

        It is committed if it comes back in `Ready.committed` with this term; if another entry
        comes back at this index, it is lost. Raises Refused, with nothing kept: not leader,
        leadership being handed over, too much uncommitted.
        """
        return self._leading().propose(data), self.term

    def propose_change(self, change: Change) -> tuple[int, int]:
        """Append the configuration with this change; it is in force at once.

        Raises Refused: as `propose`; also before the leader has committed an entry of its term,
        while an earlier change is not applied, for a learner that lags, for the last voter.
        """
        return self._leading().propose_change(change), self.term

    def read_index(self, context: bytes) -> bool:
        """Ask for a linearizable read; a ReadState with this context follows.

        False if no leader is known. The request, or its answer, may be lost on the way to
        another leader: ask again after a while with a new context.
        """
        if self._leader is not None:
            self._leader.read(Read(context, ""))
        elif self.leader_id:
            self.send(Message(READ_INDEX, self.leader_id, context=context))
        else:
            return False
        return True

    def transfer(self, to_id: str) -> None:
        """Hand leadership over to this voter.

        Proposals are refused until it leads, or for one election time-out. Raises Refused: not
        leader, not another voter.
        """
        self._leading().transfer(to_id)

    def persisted(self, number: int) -> None:
        """Everything of the Readys up to this number is durable."""
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
        """The state machine has applied everything up to index."""
        self._queue.done(index)
        self.membership.applied(self.applied_index)

    def snapshot_failed(self, to_id: str) -> None:
        """The snapshot for this member could not be sent, or was refused.

        Every SNAPSHOT message ends in this or in the member's reply.
        """
        if self._leader is not None:
            self._leader.snapshot_failed(to_id)

    def unreachable(self, to_id: str) -> None:
        """Messages to this member are being lost: do not pipeline."""
        if self._leader is not None:
            self._leader.unreachable(to_id)

    # Outputs

    def has_ready(self) -> bool:
        """Whether `ready` would give the driver anything to do."""
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
        """What has come up since the last call."""
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
        """The newest entry that may be applied: committed, and on this node's own disk."""
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
        """Entries above this index must be kept: a snapshot that ends there is on its way."""
        return NO_LIMIT if self._leader is None else self._leader.trim_limit(NO_LIMIT)

    def status(self) -> RaftStatus:
        """A copy of what operators look at."""
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

    # For the leader

    def send(self, message: Message) -> None:
        """Send, in the name of this node and term, as soon as both are durable."""
        message.from_id = self.node_id
        if message.term == 0:
            message.term = self.term
        if self._is_state_durable():
            self._messages.append(message)
        else:
            self._messages_after.append(message)

    def read_confirmed(self, context: bytes, index: int) -> None:
        """A read may be served when index is applied; 0: it could not be confirmed."""
        if index:
            self._reads.append(ReadState(context, index))
        else:
            self._reads_refused.append(ReadState(context, 0))

    def step_down(self) -> None:
        """Stop leading, in the same term."""
        self._become_follower(self.term, "")

    # Roles

    def _leading(self) -> Leader:
        if self._leader is None:
            raise Refused(f"not the leader; that is {self.leader_id or 'not known'}")
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
        # Its own vote counts when it is on disk: see `persisted`.
        self._force = force
        self._ask_for_votes(VOTE, self.term)

    def _become_leader(self) -> None:
        self.role = LEADER
        self.leader_id = self.node_id
        self._votes = {}
        self._leader = Leader(self)

    def _draw_election_timeout(self) -> None:
        """A new time-out from now on, between one and two times the configured one."""
        self._draws += 1
        z = (self.config.seed + self._draws * 0x9E3779B97F4A7C15) & _U64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _U64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _U64
        ticks = self.config.election_ticks
        self._election_timeout = ticks + (z ^ (z >> 31)) % ticks
        self._ticks = 0

    # Elections

    def _may_stand(self) -> bool:
        """A voter that has its log together. What it does not know it cannot lead."""
        return self.membership.may_lead(self.node_id) and not self.log.is_restoring()

    def _is_state_durable(self) -> bool:
        return self._durable_state == (self.term, self.vote)

    def _follows_a_leader(self) -> bool:
        """Whether a leader is known to be at work: then there is no need to elect another."""
        if self.role == LEADER:
            return True
        return self.leader_id != "" and self._ticks < self.config.election_ticks

    def _ask_for_votes(self, kind: int, term: int) -> None:
        for node_id in self.conf.voters:
            if node_id != self.node_id:
                message = Message(kind, node_id, term=term, index=self.log.last_index())
                message.log_term = self.log.last_term()
                message.force = kind == VOTE and self._force
                self.send(message)

    def _handle_pre_vote(self, message: Message) -> None:
        """Say what the vote would be. Nothing changes here, no time-out is prolonged."""
        if message.term > self.term and self.log.is_current(message.index, message.log_term):
            self.send(Message(PRE_VOTE_REPLY, message.from_id, term=message.term))
        else:
            self._refuse_vote(message)

    def _handle_vote(self, message: Message) -> None:
        """Also for candidates that are no voters here: this node's configuration may be old."""
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
        """The sender lives in an older term, and is told so where it would go on for ever."""
        kind = message.type
        if kind in (APPEND, SNAPSHOT):
            self.send(Message(APPEND_REPLY, message.from_id, reject=True))
        elif kind in (PRE_VOTE, VOTE):
            self._refuse_vote(message)

    def _follow(self, message: Message) -> None:
        """This is the leader of the term."""
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
            # What is committed here is what the leader has there.
            entries = entries[log.commit - previous :]
            last_index = max(last_index, log.commit)
        elif log.term(previous) != message.log_term:
            hint = log.agreement(previous, message.log_term)
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
        """Take what is not in the log; what contradicts it, and all behind that, goes."""
        for i in range(len(entries)):
            if self.log.term(entries[i].index) != entries[i].term:
                new = entries[i:] if i else entries
                self.membership.truncate(new[0].index - 1)
                self.log.append(new)
                self._learn_members(new)
                return

    def _learn_members(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.kind == CONFIGURATION:
                self.membership.append(entry.index, decode_conf_state(entry.data))

    def _confirm(self, message: Message, index: int, wait: bool) -> None:
        """The log is the leader's up to index: say so as far as it is durable, or wait till it is.

        Heartbeats are answered at once, however slow the disk is. They prove no more than
        an append would.
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
        """Its data is here. Take it if it is ahead of what is committed and not in the log."""
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
