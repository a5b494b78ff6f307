"""What must be true of a cluster in every step, seen by somebody who sees all nodes at once.

The names are those of the Raft paper where it has one. A broken promise raises Broken.
"""

from typing import TYPE_CHECKING

from sim.store import Store

from corvo.consensus.log import CONFIGURATION, Entry
from corvo.consensus.raft.messages import (
    APPEND_REPLY,
    VOTE_REPLY,
    ConfState,
    Message,
    decode_conf_state,
)
from corvo.consensus.raft.ready import LEADER, RaftStatus, Ready

if TYPE_CHECKING:
    from sim.node import Node


class Broken(AssertionError):
    """A promise of the protocol was broken."""


def demand(holds: bool, promise: str, *details: object) -> None:
    """Raise Broken unless the promise holds."""
    if not holds:
        raise Broken(f"{promise}: " + ", ".join(map(str, details)))


class View:
    """What the ghost remembers of one node."""

    def __init__(self) -> None:
        self.term = 0
        self.commit = 0
        self.handed_out = 0  # the last entry given to the driver to apply, in this life
        # Of the log, written or not: the terms above an index below which nothing is known.
        self.first = 1
        self.terms: list[int] = []
        # What was on disk for certain when the process stopped.
        self.durable: tuple[int, str, int, int] = (0, "", 0, 0)

    def term_at(self, index: int) -> int:
        """-1 when it is not known."""
        at = index - self.first
        return self.terms[at] if 0 <= at < len(self.terms) else -1

    @property
    def last_index(self) -> int:
        return self.first + len(self.terms) - 1

    def reset(self, index: int, term: int) -> None:
        """The log begins above this entry."""
        self.first, self.terms = index, [term]


class Ghost:
    """Watches. Never changes anything."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.views: dict[str, View] = {}
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[str, int], str] = {}
        # (index, term) -> data, kind, term of the entry before.
        self.entries: dict[tuple[int, int], tuple[bytes, int, int]] = {}
        self.committed: dict[int, int] = {0: 0}  # index -> term
        self.commit = 0
        self.commit_term = 0
        self.hashes: dict[int, bytes] = {}
        self.newest_leader_term = 0

    def add(self, node: "Node") -> None:
        self.nodes[node.name] = node
        self.views[node.name] = View()

    # Lives.

    def started(self, node: "Node") -> None:
        """Nothing that was durable is gone; what comes back is the beginning of a new life."""
        view, log = self.views[node.name], node.store.log
        term, vote, last_index, last_term = view.durable
        state = log.hard_state()
        demand(
            state.term > term or (state.term == term and vote in ("", state.vote)),
            "term and vote survive",
            node.name,
            f"had {term} {vote!r}, has {state}",
        )
        demand(
            node.store.has(last_index, last_term) or log.term(log.last_index()) > last_term,
            "durable entries survive, or what was being written over them",
            node.name,
        )
        base = log.base()
        view.reset(base.index, base.term)
        view.terms += [
            entry.term for entry in log.entries(base.index + 1, log.last_index() + 1, 1 << 62)
        ]
        view.term, view.commit = state.term, 0
        view.handed_out = node.machine.applied_index
        demand(node.machine.applied_index <= log.last_index(), "applied is durable", node.name)

    def stopped(self, node: "Node") -> None:
        log = node.store.log
        last = log.last_index()
        state = log.hard_state()
        self.views[node.name].durable = (state.term, state.vote, last, log.term(last))

    # Each Ready.

    def ready(self, node: "Node", ready: Ready) -> None:
        """Look at what a core gives to its driver, before the driver does it."""
        view = self.views[node.name]
        if ready.role_change is not None and ready.role_change.role == LEADER:
            self._elected(node, ready.role_change.term, view)
        if ready.snapshot is not None:
            meta = ready.snapshot
            demand(
                self.committed.get(meta.index) in (meta.term, None) and meta.index <= self.commit,
                "a snapshot holds what is committed",
                node.name,
                meta,
            )
            view.reset(meta.index, meta.term)
            view.handed_out = max(view.handed_out, meta.index)
        if ready.entries:
            self._appended(node, ready.entries, view)
        for entry in ready.committed:
            self._committed(node, entry, view)
        for message in ready.messages:
            self._sent(node, message)

    def _elected(self, node: "Node", term: int, view: View) -> None:
        other = self.leaders.setdefault(term, node.name)
        demand(other == node.name, "election safety", f"{other} and {node.name} lead term {term}")
        self.newest_leader_term = max(self.newest_leader_term, term)
        if term >= self.commit_term and self.commit >= view.first:
            demand(
                view.term_at(self.commit) == self.committed[self.commit],
                "leader completeness",
                f"{node.name} leads term {term}",
                f"its entry {self.commit} has term {view.term_at(self.commit)}",
                f"committed with term {self.committed[self.commit]}",
            )

    def _appended(self, node: "Node", entries: list[Entry], view: View) -> None:
        first = entries[0].index
        demand(first <= view.last_index + 1, "no gaps", node.name, entries)
        demand(
            first > view.commit and first > view.handed_out,
            "committed entries are not overwritten",
            node.name,
            f"{first} at commit {view.commit}",
        )
        del view.terms[first - view.first :]
        previous = view.term_at(first - 1)
        for entry in entries:
            known = self.entries.setdefault(
                (entry.index, entry.term), (entry.data, entry.kind, previous)
            )
            demand(
                known == (entry.data, entry.kind, previous) or previous < 0,
                "log matching",
                f"entry {entry.term}/{entry.index} on {node.name}",
                f"follows term {previous}, elsewhere {known}",
            )
            demand(entry.term >= previous, "terms rise along the log", node.name, entry)
            previous = entry.term
            view.terms.append(entry.term)

    def _committed(self, node: "Node", entry: Entry, view: View) -> None:
        demand(
            entry.index == view.handed_out + 1,
            "entries are applied in order, each once",
            node.name,
            f"{entry.index} after {view.handed_out}",
        )
        demand(
            node.store.has(entry.index, entry.term) and entry.index <= node.store.log.last_index(),
            "only durable entries are applied",
            node.name,
            entry,
        )
        view.handed_out = entry.index
        term = self.committed.setdefault(entry.index, entry.term)
        demand(
            term == entry.term,
            "state machine safety",
            f"{node.name} applies {entry.term}/{entry.index}",
            f"committed with term {term}",
        )
        if entry.index > self.commit:
            self._advance(entry.index, entry.term, node.raft.term)
            confs = [other.raft.conf for other in self.nodes.values() if other.is_up]
            demand(
                any(self._on_quorum(entry.index, entry.term, conf) for conf in confs),
                "committed entries are durable on a quorum",
                node.name,
                entry,
            )

    def _advance(self, index: int, term: int, by_term: int) -> None:
        self.commit = index
        self.committed[index] = term
        self.commit_term = max(self.commit_term, by_term)

    def _on_quorum(self, index: int, term: int, conf: ConfState) -> bool:
        having = sum(self._store(name).has(index, term) for name in conf.voters)
        return having * 2 > len(conf.voters)

    def _store(self, name: str) -> Store:
        return self.nodes[name].store

    def _sent(self, node: "Node", message: Message) -> None:
        """A promise is on disk before it is given."""
        if message.reject:
            return
        state = node.store.log.hard_state()
        if message.type == VOTE_REPLY:
            demand(
                state.term > message.term  # written behind the vote
                or (state.term, state.vote) == (message.term, message.to_id),
                "a vote is durable before it is given",
                node.name,
                message,
                state,
            )
            other = self.votes.setdefault((node.name, message.term), message.to_id)
            demand(other == message.to_id, "one vote a term", node.name, message, other)
        elif message.type == APPEND_REPLY:
            demand(
                message.term < state.term  # true when it was meant, and perhaps overwritten since
                or (
                    message.term == state.term
                    and message.index
                    <= max(node.store.log.last_index(), node.machine.applied_index)
                ),
                "entries and term are durable before they are acknowledged",
                node.name,
                message,
                state,
            )

    # After each step.

    def check(self, node: "Node") -> None:
        """Look at the node that has just done something."""
        view, status = self.views[node.name], node.raft.status()
        demand(status.term >= view.term, "terms never fall", node.name, status.term, view.term)
        demand(status.commit >= view.commit, "commit never falls", node.name, status.commit)
        demand(
            node.machine.applied_index <= status.commit <= status.last_index
            and status.durable <= status.last_index,
            "applied <= commit <= last",
            node.name,
            node.machine.applied_index,
            status.commit,
            status.last_index,
        )
        view.term = status.term
        if status.role == LEADER:
            self._check_leader(node, status, view)
        view.commit = status.commit

    def _check_leader(self, node: "Node", status: RaftStatus, view: View) -> None:
        commit, term = status.commit, status.term
        if commit > view.commit and commit > self.commit and view.term_at(commit) == term:
            demand(
                self._on_quorum(commit, term, status.conf),
                "committed entries are durable on a quorum",
                f"{node.name} in term {term}",
                f"entry {commit}, {status.conf}",
            )
            for index in range(self.commit + 1, commit + 1):
                self.committed.setdefault(index, view.term_at(index))
            self._advance(commit, term, term)
        pending = [
            index
            for index in range(commit + 1, status.last_index + 1)
            if self._kind(index, view.term_at(index)) == CONFIGURATION
        ]
        demand(len(pending) <= 1, "one change of members at a time", node.name, pending)
        if term < self.newest_leader_term:
            return  # what it knows of the others may be out of date
        for name, peer in status.peers.items():
            demand(peer.match < peer.next, "match < next", node.name, name)
            if not peer.lost:
                demand(
                    self._store(name).has(peer.match, view.term_at(peer.match))
                    or peer.match < view.first,
                    "a follower has what the leader believes it has",
                    node.name,
                    f"{name} at {peer.match}",
                )

    def _kind(self, index: int, term: int) -> int:
        known = self.entries.get((index, term))
        return -1 if known is None else known[1]

    def open_confs(self) -> list[ConfState]:
        """The newest committed configuration, and all that some leader wrote above it."""
        written = [
            (index, data, self.committed.get(index) == term)
            for (index, term), (data, kind, _) in sorted(self.entries.items())
            if kind == CONFIGURATION
        ]
        first = max((index for index, _, is_committed in written if is_committed), default=0)
        return [decode_conf_state(data) for index, data, _ in written if index >= first]

    def applied(self, node: "Node", entry: Entry) -> None:
        """State machines that have applied the same are the same."""
        known = self.hashes.setdefault(entry.index, node.machine.hash)
        demand(
            known == node.machine.hash,
            "equal index, equal state",
            f"{node.name} after {entry.index}",
        )
