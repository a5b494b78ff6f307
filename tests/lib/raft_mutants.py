"""The known bugs of Raft implementations that could live in `corvo/consensus/raft`.

Each has a scenario: the tests that must notice it (`SCENARIOS`). Bugs b1 to b69 are one list of
known bugs, and `server_mutants` has the rest of it. Bugs with other names have no number there.
"""

from typing import Final

from lib.mutation import Edit, Mutant

FOLDER = "corvo/consensus/raft/"
_TESTS: Final = "tests/unit/consensus/raft/"
T_ELECTIONS: Final = _TESTS + "test_elections.py::"
T_REPLICATION: Final = _TESTS + "test_replication.py::"
T_MEMBERSHIP: Final = _TESTS + "test_membership.py::"
T_SNAPSHOTS: Final = _TESTS + "test_snapshots.py::"
T_READS: Final = _TESTS + "test_reads.py::"
T_QUORUM: Final = _TESTS + "test_quorum.py::"

# The tests that must notice each bug. A letter after the number is another variant of the bug.
SCENARIOS: Final = {
    "b1": (
        T_ELECTIONS + "test_vote_is_durable_before_it_leaves",
        T_ELECTIONS + "test_a_vote_lost_in_a_crash_was_never_sent",
    ),
    "b2": (T_ELECTIONS + "test_term_and_vote_are_one_write",),
    "b3": (T_ELECTIONS + "test_vote_survives_a_step_down_in_its_term",),
    "b4": (T_ELECTIONS + "test_own_vote_counts_when_it_is_durable",),
    "b5": (T_ELECTIONS + "test_the_last_term_counts_before_the_length",),
    "b6": (T_ELECTIONS + "test_a_late_grant_of_an_older_term_is_ignored",),
    "b7": (T_ELECTIONS + "test_a_grant_counts_once",),
    "b8": (T_ELECTIONS + "test_a_pre_vote_changes_nothing",),
    "b9": (T_ELECTIONS + "test_a_node_in_a_higher_term_rejoins_the_cluster",),
    "b10": (T_ELECTIONS + "test_a_candidate_follows_a_leader_whose_append_does_not_fit",),
    "b11": (
        T_ELECTIONS + "test_a_leader_that_reaches_no_majority_steps_down",
        T_ELECTIONS + "test_an_isolated_leader_steps_down",
    ),
    "b12": (T_ELECTIONS + "test_a_removed_node_does_not_disturb_the_cluster",),
    "b13": (T_ELECTIONS + "test_learners_neither_campaign_nor_count",),
    "b14": (T_ELECTIONS + "test_a_promoted_learner_votes_before_it_has_the_configuration",),
    "b15": (
        T_ELECTIONS + "test_a_transfer_to_a_dead_node_ends",
        T_ELECTIONS + "test_only_the_leader_of_this_term_can_start_a_transfer_election",
    ),
    "lease": (T_ELECTIONS + "test_a_node_that_hears_its_leader_elects_no_other",),
    "force": (T_ELECTIONS + "test_a_transfer_skips_the_election_timeout",),
    "stall": (T_ELECTIONS + "test_a_leader_whose_disk_hangs_steps_down",),
    "b16": (T_REPLICATION + "test_figure_8",),
    "b17": (T_REPLICATION + "test_a_late_append_truncates_nothing",),
    "b18": (T_REPLICATION + "test_a_follower_commits_only_entries_that_an_append_has_confirmed",),
    "b19": (T_REPLICATION + "test_a_follower_that_lost_its_log_is_detected",),
    "b20": (T_REPLICATION + "test_a_late_rejection_does_not_lower_next_below_match",),
    "b21": (T_MEMBERSHIP + "test_a_reply_from_an_earlier_membership_is_ignored",),
    "b22": (T_REPLICATION + "test_a_single_node_commits_after_its_flush",),
    "b23": (T_REPLICATION + "test_completion_of_an_old_write_does_not_confirm_a_new_one",),
    "b24": (T_REPLICATION + "test_apply_waits_for_the_local_disk",),
    "b25": (T_REPLICATION + "test_a_commit_index_beyond_the_log_is_limited",),
    "torn": (T_REPLICATION + "test_the_term_is_at_least_that_of_the_log",),
    "b26": (
        T_REPLICATION + "test_many_conflicts_with_appends_of_one_entry",
        T_REPLICATION + "test_a_probe_that_confirms_nothing_new_ends_the_probing",
    ),
    "b27": (T_REPLICATION + "test_a_rejection_skips_a_whole_term",),
    "b28": (T_REPLICATION + "test_lost_replies_free_the_window",),
    "b29": (
        T_REPLICATION + "test_without_a_quorum_the_tail_is_bounded",
        T_REPLICATION + "test_the_tail_is_bounded_in_bytes",
    ),
    "b32": (
        T_QUORUM + "test_majority",
        T_QUORUM + "test_any_two_majorities_meet",
        T_QUORUM + "test_the_index_that_a_majority_has",
    ),
    "apply": (T_REPLICATION + "test_a_slow_state_machine_gets_bounded_batches",),
    "b36": (T_SNAPSHOTS + "test_a_snapshot_drops_a_conflicting_entry",),
    "b37": (T_SNAPSHOTS + "test_entries_after_the_snapshot_stay",),
    "b38": (T_SNAPSHOTS + "test_an_old_snapshot_is_ignored",),
    "b39": (T_SNAPSHOTS + "test_a_snapshot_has_the_configuration",),
    "b40": (T_SNAPSHOTS + "test_a_snapshot_in_transfer_is_not_replaced",),
    "b41": (T_SNAPSHOTS + "test_the_log_starts_right_after_the_snapshot",),
    "b69": (T_SNAPSHOTS + "test_a_snapshot_overtakes_the_apply",),
    "b44": (T_MEMBERSHIP + "test_no_change_before_the_leader_knows_what_is_committed",),
    "b45": (T_MEMBERSHIP + "test_one_change_at_a_time_until_it_is_applied",),
    "b46": (T_MEMBERSHIP + "test_an_overwritten_configuration_is_void",),
    "b47": (T_MEMBERSHIP + "test_a_removed_leader_does_not_count_itself",),
    "strand": (T_MEMBERSHIP + "test_the_newest_log_may_be_on_a_node_that_is_removed",),
    "b48": (T_MEMBERSHIP + "test_elections_go_by_the_newest_configuration",),
    "b49": (T_MEMBERSHIP + "test_votes_of_nodes_outside_the_configuration_do_not_count",),
    "gate": (T_MEMBERSHIP + "test_a_lagging_learner_is_not_promoted",),
    "b50": (T_READS + "test_a_read_on_a_new_leader_waits_for_its_first_commit",),
    "b51": (T_READS + "test_a_reply_to_an_earlier_round_confirms_no_later_read",),
    "b53": (T_READS + "test_a_read_waits_for_the_apply",),
}


def _mutant(name: str, bug: str, *edits: tuple[str, str, str]) -> Mutant:
    scenario = SCENARIOS.get(name) or SCENARIOS[name.rstrip("ab")]
    return Mutant(
        name, bug, tuple(Edit(FOLDER + file, old, new) for file, old, new in edits), scenario
    )


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
