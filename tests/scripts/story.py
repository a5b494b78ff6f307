"""Stories: what a small cluster does, as text that can be read and is checked.

A story is a text file. Lines that begin with `> ` are commands; the lines below one, up to the next
empty line, are what happened then, as it was recorded. Everything else is told to the reader.
`tools/stories.py` records anew.

    cluster ABC [learners D] [outside E] [append_size_max=0]   who is there
    elect A                  A stands for election; everybody has forgotten the last leader
    propose A x y            A, which leads, takes these entries
    tick 20 [ABC]            time passes, for all or some
    cut AB / heal [AB]       these hear nothing and say nothing any more / all do again
    lose entries of term 2   appends with entries of this term get lost; so do `entries from A`
    lose nothing
    crash A                  A loses what is not on its disk, and starts again
    hang A / flush A         A's disk does not answer / answers again
    compact A 5              A keeps a snapshot of everything up to entry 5 instead of its log
    transfer A B             A hands leadership over to B
    add / promote / remove A D     A changes the members
    read A                   A makes sure that it leads, for a read
    logs                     every node's log; what stands behind `|` is not known to be committed

Messages are shown when they arrive. Heartbeats and plain confirmations are not shown.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

from lib.raft_cluster import Cluster, Node

from corvo.consensus.log import CONFIGURATION, Entry
from corvo.consensus.raft.membership import ADD_LEARNER, PROMOTE, REMOVE
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
    Message,
    decode_conf_state,
)
from corvo.consensus.raft.ready import LEADER, ROLE_NAMES, Ready, Refused

ELECT_TRIES = 2  # who lives in an older term is only told so at first
FOLDER = Path(__file__).parent
CHANGES = {"add": ADD_LEARNER, "promote": PROMOTE, "remove": REMOVE}


def name_entry(entry: Entry) -> str:
    """Term, and what the entry does."""
    if entry.kind == CONFIGURATION:
        conf = decode_conf_state(entry.data)
        learners = f" and learner {' '.join(conf.learners)}" if conf.learners else ""
        return f"{entry.term}:[{' '.join(conf.voters)}{learners}]"
    return f"{entry.term}:{entry.data.decode() or '-'}"


def tell_message(message: Message) -> str:
    """A message in words; empty for those that a story leaves out."""
    term, kind = message.term, message.type
    entries = " ".join(name_entry(entry) for entry in message.entries)
    last = f"{message.log_term}/{message.index}"
    refuses = "refuses" if message.reject else "agrees"
    words = {
        PRE_VOTE: f"would you vote for me in term {term}? my last entry is {last}",
        PRE_VOTE_REPLY: refuses,
        VOTE: f"vote for me in term {term}, my last entry is {last}",
        VOTE_REPLY: "refuses" if message.reject else f"gives its vote of term {term}",
        APPEND: f"behind {last} comes {entries}" if entries else "",
        APPEND_REPLY: (
            f"has no {message.index} like that" if message.index else "is in a later term"
        )
        if message.reject
        else "",
        SNAPSHOT: "here is everything up to entry "
        + (f"{message.snapshot.term}/{message.snapshot.index}" if message.snapshot else ""),
        TIMEOUT_NOW: "stand for election now",
        READ_INDEX: "up to where must I be to answer a read?",
        READ_INDEX_REPLY: f"up to {message.index}",
    }[kind]
    return f"  {message.from_id} -> {message.to_id}  {words}" if words else ""


class Stage(Cluster):
    """A cluster that says what it does."""

    def __init__(self, tell: Callable[[str], None], *names: str, **options: int) -> None:
        self.tell = tell
        super().__init__(*names, **options)

    def deliver(self, message: Message) -> None:
        text = tell_message(message)
        if text:
            self.tell(text + (" (lost)" if self.is_lost(message) else ""))
        super().deliver(message)

    def check(self, node: Node, ready: Ready) -> None:
        super().check(node, ready)
        name, change = node.node_id, ready.role_change
        if change is not None and change.role == LEADER:
            self.tell(f"{name} leads term {change.term}")
        for entry in ready.committed:
            self.tell(f"{name} applies {name_entry(entry)}")
        for state in ready.read_states:
            ready_at = f"may read at entry {state.index}" if state.index else "must ask again"
            self.tell(f"{name} {ready_at}")


class Story:
    """Runs commands one after the other."""

    def __init__(self) -> None:
        self.stage: Stage
        self._lines: list[str] = []

    def run(self, command: str) -> list[str]:
        """Run a command; what happened."""
        self._lines = []
        word, *words = command.split()
        try:
            getattr(self, f"do_{word}")(*words)
        except Refused as refused:
            self._lines.append(f"refused: {refused}")
        return self._lines

    def do_cluster(self, voters: str, *words: str) -> None:
        pairs = dict(itertools.pairwise(words))
        options = {k: int(v) for k, v in (word.split("=") for word in words if "=" in word)}
        names = (voters, pairs.get("learners", ""), pairs.get("outside", ""))
        self.stage = Stage(self._lines_append, *names, **options)

    def _lines_append(self, line: str) -> None:
        self._lines.append(line)

    def do_elect(self, name: str) -> None:
        for _ in range(ELECT_TRIES):
            if self.stage[name].role != LEADER:
                self.stage.expire(name)
                self.stage[name].campaign()
                self.stage.settle()

    def do_propose(self, name: str, *data: str) -> None:
        self.stage.propose(name, *data)

    def do_tick(self, count: str, names: str = "") -> None:
        self.stage.tick(int(count), names)

    def do_cut(self, names: str) -> None:
        self.stage.cut += list(names)

    def do_heal(self, names: str = "") -> None:
        kept = [name for name in self.stage.cut if names and name not in names]
        self.stage.cut = kept

    def do_lose(self, *words: str) -> None:
        if words == ("nothing",):
            self.stage.lose = lambda message: False
        elif words[:2] == ("entries", "of"):
            term = int(words[3])
            self.stage.lose = lambda message: any(e.term == term for e in message.entries)
        else:
            source = words[2]
            self.stage.lose = lambda message: bool(message.entries) and message.from_id == source

    def do_crash(self, name: str) -> None:
        self.stage.crash(name)

    def do_hang(self, name: str) -> None:
        self.stage.nodes[name].disk_hangs = True

    def do_flush(self, name: str) -> None:
        self.stage.nodes[name].disk_hangs = False
        self.stage.settle()

    def do_compact(self, name: str, index: str) -> None:
        self.stage.compact(name, int(index))

    def do_transfer(self, name: str, to_id: str) -> None:
        self.stage[name].transfer(to_id)
        self.stage.settle()

    def do_add(self, name: str, node_id: str) -> None:
        self.stage.change(name, CHANGES["add"], node_id)

    def do_promote(self, name: str, node_id: str) -> None:
        self.stage.change(name, CHANGES["promote"], node_id)

    def do_remove(self, name: str, node_id: str) -> None:
        self.stage.change(name, CHANGES["remove"], node_id)

    def do_read(self, name: str) -> None:
        if not self.stage[name].read_index(b"read"):
            self._lines.append(f"{name} knows no leader")
        self.stage.settle()

    def do_logs(self) -> None:
        for name, node in self.stage.nodes.items():
            raft, log = node.raft, node.raft.log
            words = [f"(snapshot {log.first_index() - 1})"] if log.first_index() > 1 else []
            for entry in log.entries(log.first_index(), log.last_index() + 1, 1 << 62):
                words.append(name_entry(entry))
                if entry.index == log.commit:
                    words.append("|")
            role = ROLE_NAMES[raft.role]
            self._lines.append(f"{name} {role:13} term {raft.term}  {' '.join(words)}".rstrip())


def record(text: str) -> str:
    """The story with what happens now below each command."""
    story = Story()
    result: list[str] = []
    is_output = False
    for line in text.splitlines():
        if line.startswith("> "):
            result += [line, *story.run(line[2:])]
            is_output = True
        elif not line.strip():
            is_output = False
            result.append(line)
        elif not is_output:
            result.append(line)
    return "\n".join(result) + "\n"


def stories() -> list[Path]:
    """The files."""
    return sorted(FOLDER.glob("*.txt"))
