"""The known bugs of Raft implementations that could live in `corvo/consensus/raft`.

Each has a scenario of its own: the tests whose names begin with `test_<name>_`, or with that name
without the letter behind the number.
"""

from lib.mutation import Edit, Mutant

FOLDER = "corvo/consensus/raft/"


def _mutant(name: str, bug: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, bug, tuple(Edit(FOLDER + file, old, new) for file, old, new in edits))


_ALL = (
    # Elections and the hard state
    _mutant(
        "b1",
        "a vote leaves before it is on disk",
        (
            "core.py",
            "if self._is_state_durable():\n            self._messages",
            "if True:\n            self._messages",
        ),
    ),
    _mutant(
        "b2",
        "term and vote are written one after the other",
        (
            "core.py",
            "        state = (self.term, self.vote)\n        has_new",
            "        same = self.term == self._handed_state[0]\n"
            '        state = (self.term, self.vote if same else "")\n        has_new',
        ),
        ("core.py", "HardState(self.term, self.vote, self.log", "HardState(*state, self.log"),
    ),
    _mutant(
        "b3",
        "a step down in the same term forgets the vote",
        ("core.py", "        if term > self.term:\n", "        if term >= self.term:\n"),
    ),
    _mutant(
        "b4",
        "a candidate's own vote counts before it is on disk",
        (
            "core.py",
            "        self._request_votes(VOTE, self.term)\n",
            "        self._request_votes(VOTE, self.term)\n"
            "        self._count_vote(self.node_id, granted=True)\n",
        ),
    ),
    _mutant(
        "b5",
        "the longer log wins, whatever its last term",
        (
            "log_view.py",
            "return term > last_term or (term == last_term and index >= self.last_index())",
            "return index >= self.last_index()",
        ),
    ),
    _mutant(
        "b6",
        "a late grant of an older term counts",
        (
            "core.py",
            "        if message.term < self.term:\n",
            "        if message.term < self.term and kind != VOTE_REPLY:\n",
        ),
    ),
    _mutant(
        "b7",
        "a grant that arrives twice counts twice",
        (
            "core.py",
            "self._votes.setdefault(node_id, granted)",
            "self._votes[node_id + str(len(self._votes))] = granted",
        ),
        ("quorum.py", "for voter in voters:", "for voter in votes:"),
    ),
    _mutant(
        "b8",
        "a pre-vote prolongs the time-out of who is asked",
        (
            "core.py",
            "        if message.term > self.term and self.log.is_current(",
            "        self._draw_patience()\n"
            "        if message.term > self.term and self.log.is_current(",
        ),
    ),
    _mutant(
        "b9",
        "a node in a higher term leaves the leader in the dark",
        (
            "core.py",
            "        if kind in (APPEND, SNAPSHOT):\n            self.send(",
            "        if kind == 0:\n            self.send(",
        ),
    ),
    _mutant(
        "b10",
        "a candidate does not follow a leader whose append it refuses",
        (
            "core.py",
            "        self._follow(message)\n        log = self.log\n        previous",
            "        if self.log.term(message.index) == message.log_term:\n"
            "            self._follow(message)\n        log = self.log\n        previous",
        ),
    ),
    _mutant(
        "b11",
        "a leader that hears of no quorum goes on",
        ("leader.py", "if not self._hears_quorum():", "if False:"),
    ),
    _mutant(
        "b12",
        "a removed node raises the term of the others",
        ("core.py", "if self.conf.voters == [self.node_id]:", "if True:"),
        ("core.py", "and not message.force and self._follows_a_leader():", "and False:"),
    ),
    _mutant(
        "b13a",
        "a learner stands for election",
        (
            "core.py",
            "return self.membership.may_lead(self.node_id) and not",
            "return not",
        ),
        ("quorum.py", "return count // 2 + 1", "return max(count // 2, 1)"),
    ),
    _mutant(
        "b13b",
        "learners count in the quorum",
        (
            "leader.py",
            "            if membership.is_voter(peer.node_id):\n                values",
            "            if True:\n                values",
        ),
    ),
    _mutant(
        "b14",
        "who does not know yet that it is a voter refuses to vote",
        (
            "core.py",
            "        if is_free and self.log",
            "        if is_free and self.membership.is_voter(self.node_id) and self.log",
        ),
    ),
    _mutant(
        "b15a",
        "an old order to stand for election is obeyed",
        (
            "core.py",
            "        if message.term < self.term:\n",
            "        if message.term < self.term and kind != TIMEOUT_NOW:\n",
        ),
        ("core.py", "and message.from_id == self.leader_id and", "and"),
    ),
    _mutant(
        "b15b",
        "a transfer to a dead node blocks for ever",
        ("leader.py", "if self._transfer_ticks >= config.election_ticks:", "if False:"),
    ),
    _mutant(
        "lease",
        "a node that hears its leader elects another",
        ("core.py", "and not message.force and self._follows_a_leader():", "and False:"),
    ),
    _mutant(
        "force",
        "a node that hears its leader refuses whom the leader asked to stand",
        ("core.py", "and not message.force and self._follows", "and self._follows"),
    ),
    _mutant(
        "stall",
        "a leader whose disk hangs goes on leading",
        ("core.py", "if self._write_ticks >= 2 * self.config", "if False and self.config"),
    ),
    # Replication and commit
    _mutant(
        "b16",
        "an entry of an older term is committed by counting",
        (
            "leader.py",
            "if self._log.term(index) != self._raft.term or not self._log.commit_to(index):",
            "if not self._log.commit_to(index):",
        ),
    ),
    _mutant(
        "b17",
        "every append cuts the log, conflict or not",
        (
            "core.py",
            "if self.log.term(entries[i].index) != entries[i].term:",
            "if True:",
        ),
    ),
    _mutant(
        "b18",
        "a follower commits entries that this append says nothing of",
        (
            "core.py",
            "log.commit_to(min(message.commit, last_index))",
            "log.commit_to(min(message.commit, log.last_index()))",
        ),
    ),
    _mutant(
        "b19",
        "a follower that lost its log goes unnoticed",
        ("progress.py", "self.lost = True", "pass"),
    ),
    _mutant(
        "b20",
        "a late refusal takes back what was confirmed",
        ("progress.py", "        if index <= self.match:", "        if False:"),
        ("progress.py", "max(min(index, hint + 1), self.match + 1)", "min(index, hint + 1)"),
    ),
    _mutant(
        "b21",
        "a reply of an earlier stay in the cluster counts",
        (
            "leader.py",
            "if peer is None or message.session != peer.session:",
            "if peer is None:",
        ),
    ),
    _mutant(
        "b22",
        "a single node commits before the flush",
        (
            "leader.py",
            "self._of_voters(self._log.durable,",
            "self._of_voters(self._log.last_index(),",
        ),
        (
            "leader.py",
            "        return self._append_entry(data, FRAME)",
            "        index = self._append_entry(data, FRAME)\n        self.commit()\n"
            "        return index",
        ),
        ("core.py", "return min(self.log.commit, self.log.durable)", "return self.log.commit"),
    ),
    _mutant(
        "b23",
        "the end of an old write stands for what has replaced it",
        (
            "log_view.py",
            "write.last_index = min(write.last_index, last_index)",
            "pass",
        ),
    ),
    _mutant(
        "b24",
        "entries are applied that are not on this node's disk",
        ("core.py", "return min(self.log.commit, self.log.durable)", "return self.log.commit"),
    ),
    _mutant(
        "b25",
        "a commit index beyond the log is believed",
        ("log_view.py", "max(min(commit, self.durable), storage", "max(commit, storage"),
    ),
    _mutant(
        "torn",
        "a node goes on in a term older than its log",
        ("core.py", "        if self.term < last_term:\n", "        if False:\n"),
    ),
    _mutant(
        "b26",
        "a follower that confirms nothing new is probed for ever",
        (
            "progress.py",
            "if self.state == PROBE and index",
            "if self.state == PROBE and news and index",
        ),
    ),
    _mutant(
        "b27",
        "one index back for each refusal",
        (
            "log_view.py",
            "while index >= self.first_index() and self.term(index) > term:",
            "while False:",
        ),
    ),
    _mutant(
        "b28",
        "a lost reply keeps its place in the window",
        (
            "progress.py",
            "while inflight and inflight[0][0] <= index:",
            "while inflight and inflight[0][0] == index:",
        ),
    ),
    _mutant(
        "b29",
        "without a quorum a leader takes proposals for ever",
        ("leader.py", 'raise Refused("too many entries are uncommitted")', "pass"),
    ),
    _mutant(
        "b32a",
        "half of an even number is a majority",
        ("quorum.py", "return count // 2 + 1", "return (count + 1) // 2"),
    ),
    _mutant(
        "b32b",
        "what one less than a majority has is committed",
        ("quorum.py", "ordered[majority(len(values)) - 1]", "ordered[majority(len(values)) - 2]"),
    ),
    _mutant(
        "apply",
        "a slow state machine is given everything at once",
        (
            "apply_queue.py",
            "return not self._batches or self._size < self._size_max",
            "return True",
        ),
    ),
    # Snapshots
    _mutant(
        "b36",
        "an entry that contradicts the snapshot stays",
        (
            "core.py",
            "elif log.term(snapshot.index) == snapshot.term:",
            "elif log.term(snapshot.index) != -1:",
        ),
    ),
    _mutant(
        "b37",
        "a snapshot of the beginning drops the rest of the log",
        ("core.py", "elif log.term(snapshot.index) == snapshot.term:", "elif False:"),
    ),
    _mutant(
        "b38",
        "an old snapshot takes the state back",
        ("core.py", "        if snapshot.index <= log.commit:\n", "        if False:\n"),
        ("log_view.py", "        assert snapshot.index > self.commit\n", ""),
    ),
    _mutant(
        "b39",
        "a snapshot brings no members",
        ("core.py", "self.membership.restore(snapshot.index, snapshot.conf)", "pass"),
    ),
    _mutant(
        "b40",
        "a newer snapshot replaces the one on its way, for ever",
        ("leader.py", "if peer.state != IN_SNAPSHOT and log.term", "if log.term"),
    ),
    _mutant(
        "b41",
        "the log does not know the entry right before it",
        ("storage.py", "if index == base.index:", "if index == base.index == 0:"),
    ),
    _mutant(
        "b69",
        "entries that a snapshot has overtaken are applied",
        ("core.py", "            self._queue.restore(snapshot.index)\n", ""),
    ),
    # Membership
    _mutant(
        "b44",
        "a new leader changes members before it knows what is committed",
        ("leader.py", "        if not self._is_established():\n", "        if False:\n"),
    ),
    _mutant(
        "b45",
        "two changes at a time",
        ("leader.py", "if raft.membership.index > raft.applied_index:", "if False:"),
    ),
    _mutant(
        "b46",
        "a configuration stays in force when its entry is overwritten",
        ("core.py", "self.membership.truncate(new[0].index - 1)", "pass"),
        ("membership.py", "        assert index > self._indexes[-1]\n", ""),
    ),
    _mutant(
        "b47a",
        "a leader that was removed counts itself",
        (
            "leader.py",
            "        if membership.is_voter(self._raft.node_id):\n            values",
            "        if True:\n            values",
        ),
    ),
    _mutant(
        "b47b",
        "a leader leaves before its removal is committed",
        (
            "leader.py",
            "if self._log.commit >= raft.membership.index and not raft",
            "if not raft",
        ),
    ),
    _mutant(
        "strand",
        "a node whose removal is not committed does not stand",
        ("core.py", "self.membership.may_lead(", "self.membership.is_voter("),
    ),
    _mutant(
        "b48",
        "elections go by the last applied configuration",
        ("core.py", "tally(self.conf.voters,", "tally(self.membership._confs[0].voters,"),
    ),
    _mutant(
        "b49",
        "votes of strangers count",
        ("quorum.py", "for voter in voters:", "for voter in votes:"),
    ),
    _mutant(
        "gate",
        "a learner that lags is promoted",
        ("leader.py", "if peer is None or not self._has_caught_up(peer):", "if peer is None:"),
    ),
    # Reads
    _mutant(
        "b50",
        "a new leader answers reads from an old commit index",
        (
            "leader.py",
            "if self._reads.are_waiting and self._is_established():",
            "if self._reads.are_waiting:",
        ),
    ),
    _mutant(
        "b51",
        "the answer to an earlier round confirms a later read",
        (
            "leader.py",
            "        if message.round > peer.round:\n            peer.round = message.round",
            "        if True:\n            peer.round = self._reads.number",
        ),
    ),
    _mutant(
        "b53",
        "a read is served before the state machine has got there",
        ("core.py", "if read.index <= self.applied_index else waiting", "if True else waiting"),
        ("core.py", "self._first_read_index() <= self.applied_index", "True"),
    ),
)

MUTANTS = {mutant.name: mutant for mutant in _ALL}
