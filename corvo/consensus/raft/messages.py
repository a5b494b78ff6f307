"""Raft messages, hard state and configurations, and their encoding.

The encoding (`corvo._fast.codec.layouts`) is one version byte, then the fields of the layouts
below. Decoding is strict and raises CodecError, because the bytes come from the network.

An encoded message has every field of `Message`; most take one byte. Its entries follow `index`
without gaps, so only their terms, kinds and data are encoded. An encoded configuration is also the
data of a CONFIGURATION entry.
"""

from typing import Final, final

from corvo._fast.codec.layouts import CodecError, decode_fields, encode_fields
from corvo.consensus.log import CONFIGURATION, Entry

# Types of messages. A heartbeat is an APPEND without entries.
PRE_VOTE: Final = 1  # would get a vote in `term`? (index, log_term): last entry
PRE_VOTE_REPLY: Final = 2
VOTE: Final = 3  # requests a vote in `term`; `force`: leadership transfer
VOTE_REPLY: Final = 4
APPEND: Final = 5  # after the entry (index, log_term) come `entries`; `commit` is committed
APPEND_REPLY: Final = 6  # the log matches up to `index`; or `reject`, see Message.reject_hint
SNAPSHOT: Final = 7  # `snapshot` is sent; its data uses another channel and arrives first
TIMEOUT_NOW: Final = 8  # start an election at once, for a leadership transfer
READ_INDEX: Final = 9  # follower to leader: requests the read index for the read `context`
READ_INDEX_REPLY: Final = 10  # `index` to apply before the read, or `reject`
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
    """State that must be durable before a node acts on it: its term and its vote in that term.

    `commit` is a hint that saves work after a restart; it can be too low, but never too high.
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

    Learners receive the log but do not vote or count for commits. `contexts` has opaque data of
    each member for the layers above (addresses).
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
        assert len(self.contexts) == len(self.members), "the members are distinct"

    @property
    def members(self) -> list[str]:
        """Voters, then learners."""
        return self.voters + self.learners

    def __repr__(self) -> str:
        return f"ConfState(voters={self.voters}, learners={self.learners})"


@final
class SnapshotMeta:
    """Metadata of a snapshot: index and term of its last entry, and the configuration there."""

    __slots__ = ("conf", "index", "term")

    def __init__(self, index: int, term: int, conf: ConfState) -> None:
        self.index = index
        self.term = term
        self.conf = conf

    def __repr__(self) -> str:
        return f"SnapshotMeta(index={self.index}, term={self.term}, conf={self.conf})"


@final
class Message:
    """One message between two nodes; fields that its type does not use are zero or empty."""

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
        # Term of the sender; in a pre-vote and its grant: the term of the future election.
        self.term = term
        self.index = index
        self.log_term = log_term
        self.commit = commit
        self.entries: list[Entry] = [] if entries is None else entries
        self.reject = reject
        # In a rejected append: the largest index at which the logs may match, according to the
        # follower; `log_term` is the term of its entry there.
        self.reject_hint = reject_hint
        # In appends and snapshots, repeated in the reply: identifies one period of membership of
        # the follower. A node that is removed and added again gets a new one.
        self.session = session
        # In appends, repeated in the reply: number of the newest read round.
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
    """Encode a message."""
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
    """Decode a message. Raises CodecError."""
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
        raise CodecError("terms, kinds and data of entries have different lengths")
    if (kind == SNAPSHOT) != (snapshot != b""):
        raise CodecError("exactly a snapshot message has a snapshot")
    if terms and kind != APPEND:
        raise CodecError("only an append has entries")
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
    """Encode a configuration, the data of a CONFIGURATION entry."""
    contexts: list[bytes] = [conf.contexts[node_id] for node_id in conf.members]
    return encode_fields(_CONFIGURATION, (conf.voters, conf.learners, contexts))


def decode_conf_state(data: bytes) -> ConfState:
    """Decode a configuration.

    Raises CodecError, also if the lists are not sorted or have a duplicate member."""
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
    """Encode the metadata of a snapshot."""
    conf = encode_conf_state(snapshot.conf)
    return encode_fields(_SNAPSHOT, (snapshot.index, snapshot.term, conf))


def decode_snapshot(data: bytes) -> SnapshotMeta:
    """Decode the metadata of a snapshot. Raises CodecError."""
    index: int
    term: int
    conf: bytes
    index, term, conf = decode_fields(_SNAPSHOT, data)
    if index == 0:
        raise CodecError("a snapshot needs an index above 0")
    return SnapshotMeta(index, term, decode_conf_state(conf))
