"""What nodes say to each other, what a node must not forget, and both as bytes.

Everything is encoded as fields (`corvo._fast.codec.layouts`): one version byte, then the fields of
the layouts below. Decoding is strict and raises CodecError: these bytes come from the network.

A message carries every field of `Message`, most of them one byte. Its entries follow `index`
without gaps, so only their terms, kinds and data are written. A configuration is also the data of
the log entry that brings it into force.
"""

from typing import Final, final

from corvo._fast.codec.layouts import CodecError, decode_fields, encode_fields
from corvo.consensus.log import CONFIGURATION, Entry

# Types of messages. Every request of a leader is an APPEND: a heartbeat is one without entries.
PRE_VOTE: Final = 1  # would you vote for me in `term`? (index, log_term): my last entry
PRE_VOTE_REPLY: Final = 2
VOTE: Final = 3  # vote for me in `term`. `force`: the leader itself asked me to stand
VOTE_REPLY: Final = 4
APPEND: Final = 5  # after the entry (index, log_term) come `entries`; `commit` is committed
APPEND_REPLY: Final = 6  # my log is yours up to `index`; or `reject`, see Message.reject_hint
SNAPSHOT: Final = 7  # here is `snapshot`: its data comes, and came, by another way
TIMEOUT_NOW: Final = 8  # stand for election at once: the leader hands over
READ_INDEX: Final = 9  # follower to leader: up to where must I apply to answer the read `context`?
READ_INDEX_REPLY: Final = 10  # `index`, or `reject`
_TYPE_MAX: Final = READ_INDEX_REPLY

TYPE_NAMES: Final = (
    "",
    "PreVote",
    "PreVoteReply",
    "Vote",
    "VoteReply",
    "Append",
    "AppendReply",
    "Snapshot",
    "TimeoutNow",
    "ReadIndex",
    "ReadIndexReply",
)

_MESSAGE: Final = "ussuuuuUUBfuuufbb"
_CONFIGURATION: Final = "SSB"
_SNAPSHOT: Final = "uub"


@final
class HardState:
    """What a node must have on disk before it acts on it: its term, its vote in it.

    `commit` is a hint that saves work after a restart; it may be stale, never too high.
    """

    __slots__ = ("commit", "term", "vote")

    def __init__(self, term: int = 0, vote: str = "", commit: int = 0) -> None:
        self.term = term
        self.vote = vote
        self.commit = commit

    def __repr__(self) -> str:
        return f"HardState(term={self.term}, vote={self.vote!r}, commit={self.commit})"


@final
class ConfState:
    """The members of the cluster, in the order of their ids.

    Voters decide; learners receive the log and decide nothing. `contexts` says of each member
    what the layers above must know (addresses), opaque here.
    """

    __slots__ = ("contexts", "learners", "voters")

    def __init__(
        self,
        voters: list[str],
        learners: list[str] | None = None,
        contexts: dict[str, bytes] | None = None,
    ) -> None:
        self.voters = sorted(voters)
        self.learners = sorted(learners or [])
        known: dict[str, bytes] = contexts or {}
        self.contexts = {node_id: known.get(node_id, b"") for node_id in self.members}
        assert len(self.contexts) == len(self.members), "nobody is a member twice"

    @property
    def members(self) -> list[str]:
        """Voters, then learners."""
        return self.voters + self.learners

    def __repr__(self) -> str:
        return f"ConfState(voters={self.voters}, learners={self.learners})"


@final
class SnapshotMeta:
    """What a snapshot stands for: the log up to (index, term), and the members at that point."""

    __slots__ = ("conf", "index", "term")

    def __init__(self, index: int, term: int, conf: ConfState) -> None:
        self.index = index
        self.term = term
        self.conf = conf

    def __repr__(self) -> str:
        return f"SnapshotMeta(index={self.index}, term={self.term}, conf={self.conf})"


@final
class Message:
    """One message between two nodes. Fields that its type does not use are zero or empty."""

    __slots__ = (
        "commit",
        "context",
        "entries",
        "force",
        "from_id",
        "index",
        "log_term",
        "reject",
        "reject_hint",
        "round",
        "session",
        "snapshot",
        "term",
        "to_id",
        "type",
    )

    def __init__(
        self,
        type: int,
        to_id: str,
        *,
        from_id: str = "",
        term: int = 0,
        index: int = 0,
        log_term: int = 0,
        commit: int = 0,
        entries: list[Entry] | None = None,
        reject: bool = False,
        reject_hint: int = 0,
        session: int = 0,
        round: int = 0,
        force: bool = False,
        context: bytes = b"",
        snapshot: SnapshotMeta | None = None,
    ) -> None:
        self.type = type
        self.to_id = to_id
        self.from_id = from_id
        # Of the sender; of a pre-vote and the grant of one: the term that would be.
        self.term = term
        self.index = index
        self.log_term = log_term
        self.commit = commit
        self.entries: list[Entry] = [] if entries is None else entries
        self.reject = reject
        # Of a refused append: the largest index at which the logs may agree, as far as the
        # follower can tell; `log_term` is the term of its entry there.
        self.reject_hint = reject_hint
        # Of appends and snapshots, repeated in the reply: which stay of the follower in the
        # configuration they belong to. A node removed and added again gets a new one.
        self.session = session
        # Of appends, repeated in the reply: the newest round of read confirmations.
        self.round = round
        self.force = force
        self.context = context
        self.snapshot = snapshot

    def __repr__(self) -> str:
        text = f"{TYPE_NAMES[self.type]} {self.from_id}->{self.to_id} t{self.term}"
        if self.index or self.log_term:
            text += f" {self.log_term}/{self.index}"
        if self.commit:
            text += f" commit={self.commit}"
        if self.entries:
            first, last = self.entries[0], self.entries[-1]
            text += f" entries={first.term}/{first.index}..{last.term}/{last.index}"
        if self.reject:
            text += f" reject hint={self.reject_hint}"
        if self.snapshot is not None:
            text += f" snapshot={self.snapshot.term}/{self.snapshot.index}"
        return text


def encode_message(message: Message) -> bytes:
    """The message as it travels."""
    terms: list[int] = []
    kinds: list[int] = []
    data: list[bytes] = []
    for entry in message.entries:
        terms.append(entry.term)
        kinds.append(entry.kind)
        data.append(entry.data)
    snapshot = message.snapshot
    return encode_fields(
        _MESSAGE,
        (
            message.type,
            message.from_id,
            message.to_id,
            message.term,
            message.index,
            message.log_term,
            message.commit,
            terms,
            kinds,
            data,
            message.reject,
            message.reject_hint,
            message.session,
            message.round,
            message.force,
            message.context,
            b"" if snapshot is None else encode_snapshot(snapshot),
        ),
    )


def decode_message(data: bytes) -> Message:
    """Raises CodecError."""
    kind: int
    from_id: str
    to_id: str
    index: int
    terms: list[int]
    kinds: list[int]
    payloads: list[bytes]
    snapshot: bytes
    (
        kind,
        from_id,
        to_id,
        term,
        index,
        log_term,
        commit,
        terms,
        kinds,
        payloads,
        reject,
        reject_hint,
        session,
        round,
        force,
        context,
        snapshot,
    ) = decode_fields(_MESSAGE, data)
    if not 0 < kind <= _TYPE_MAX:
        raise CodecError(f"unknown message type {kind}")
    if not len(terms) == len(kinds) == len(payloads):
        raise CodecError("entries whose terms, kinds and data differ in number")
    if (kind == SNAPSHOT) != (snapshot != b""):
        raise CodecError("a snapshot belongs to a snapshot message, and to no other")
    if terms and kind != APPEND:
        raise CodecError("entries belong to appends")
    entries: list[Entry] = []
    for i in range(len(terms)):
        if kinds[i] > CONFIGURATION:
            raise CodecError(f"unknown kind {kinds[i]} of an entry")
        if kinds[i] == CONFIGURATION:
            decode_conf_state(payloads[i])
        entries.append(Entry(index + 1 + i, terms[i], payloads[i], kinds[i]))
    return Message(
        kind,
        to_id,
        from_id=from_id,
        term=term,
        index=index,
        log_term=log_term,
        commit=commit,
        entries=entries,
        reject=reject,
        reject_hint=reject_hint,
        session=session,
        round=round,
        force=force,
        context=context,
        snapshot=decode_snapshot(snapshot) if snapshot else None,
    )


def encode_conf_state(conf: ConfState) -> bytes:
    """The data of a CONFIGURATION entry."""
    contexts: list[bytes] = [conf.contexts[node_id] for node_id in conf.members]
    return encode_fields(_CONFIGURATION, (conf.voters, conf.learners, contexts))


def decode_conf_state(data: bytes) -> ConfState:
    """Raises CodecError, also when the lists are not in order or a member is named twice."""
    voters: list[str]
    learners: list[str]
    contexts: list[bytes]
    voters, learners, contexts = decode_fields(_CONFIGURATION, data)
    members = voters + learners
    if len(contexts) != len(members):
        raise CodecError("a configuration needs one context for each member")
    if len(set(members)) != len(members) or voters != sorted(voters):
        raise CodecError("a configuration lists each member once, in order")
    if learners != sorted(learners):
        raise CodecError("a configuration lists learners in order")
    return ConfState(voters, learners, dict(zip(members, contexts, strict=True)))


def encode_snapshot(snapshot: SnapshotMeta) -> bytes:
    """What a snapshot stands for, for messages and for the head of the snapshot itself."""
    conf = encode_conf_state(snapshot.conf)
    return encode_fields(_SNAPSHOT, (snapshot.index, snapshot.term, conf))


def decode_snapshot(data: bytes) -> SnapshotMeta:
    """Raises CodecError."""
    index: int
    term: int
    conf: bytes
    index, term, conf = decode_fields(_SNAPSHOT, data)
    if index == 0:
        raise CodecError("a snapshot of nothing")
    return SnapshotMeta(index, term, decode_conf_state(conf))
