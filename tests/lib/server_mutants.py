"""The known bugs of Raft servers that could live outside the core: in the log on disk, the state
machine, snapshots, between nodes, and in the handling of a request.

Each names the tests that must notice it, in one process.
"""

from lib.mutation import Edit, Mutant

WAL = "corvo/consensus/wal/wal.py"
SNAPSHOTS = "corvo/consensus/cluster/snapshots.py"
T_WAL = "tests/unit/consensus/wal/test_wal.py::"
T_MACHINE = "tests/unit/fsm/test_machine.py::"
T_SNAPSHOTS = "tests/unit/consensus/cluster/test_snapshots.py::"
T_TRANSPORT = "tests/unit/consensus/cluster/test_transport.py::"
T_PIPELINE = "tests/unit/engine/test_pipeline.py::"


def _mutant(name: str, bug: str, path: str, old: str, new: str, *scenario: str) -> Mutant:
    return Mutant(name, bug, (Edit(path, old, new),), scenario)


_ALL = (
    # On the way of a request
    _mutant(
        "b30a",
        "a write whose leader was lost is reported as refused",
        "corvo/net/forward/proxy.py",
        'OutcomeUnknown("the leader was lost; the request may have taken effect")',
        'NoLeader("the leader was lost")',
        "tests/unit/net/forward/test_proxy.py::test_a_leader_that_dies_with_a_request",
    ),
    _mutant(
        "b30b",
        "what was proposed is given back as not done when leadership ends",
        "corvo/engine/pipeline.py",
        "        self.open = False\n        if self._batcher.count:\n",
        "        self.open = False\n"
        "        for index in list(self._in_flight):\n"
        "            self._lose(self._take_flight(index)[0])\n"
        "        if self._batcher.count:\n",
        T_PIPELINE + "test_what_was_proposed_may_still_be_committed",
    ),
    _mutant(
        "b31",
        "an entry in the place of a leader's own is not applied there",
        "corvo/engine/pipeline.py",
        "                if entry.kind == FRAME:\n",
        "                if entry.index in self._in_flight and (\n"
        "                    self._in_flight[entry.index][2] != entry.term\n"
        "                ):\n"
        "                    machine.configure(entry.index, entry.term, b'')\n"
        "                elif entry.kind == FRAME:\n",
        T_PIPELINE + "test_another_entry_in_its_place",
    ),
    _mutant(
        "b34",
        "a request that comes again is done again",
        "corvo/fsm/machine.py",
        "    if found is not None:\n        return found[0]\n",
        "",
        "tests/unit/fsm/ops/test_idempotency.py::test_a_request_that_comes_again_has_one_effect",
    ),
    # Snapshots
    _mutant(
        "b35",
        "a snapshot is labelled with an entry that it does not hold",
        SNAPSHOTS,
        '_Copy(found["index"],',
        '_Copy(found["index"] + 1,',
        T_SNAPSHOTS + "test_label_and_content_are_of_one_flush",
    ),
    _mutant(
        "b42",
        "a snapshot counts before it has its name on disk",
        SNAPSHOTS,
        "        sync_directory(files, directory)\n        sync_directory(files, root)\n"
        "        if failpoints.armed",
        "        if failpoints.armed",
        T_SNAPSHOTS + "test_a_power_cut_at_any_step_leaves_the_old_base_or_the_new_one",
    ),
    _mutant(
        "b43a",
        "a damaged snapshot is installed",
        SNAPSHOTS,
        'if bytes.fromhex(found["digest"]) != offer.digest:',
        "if False:",
        T_SNAPSHOTS + "test_a_damaged_copy_is_refused_and_deleted",
    ),
    _mutant(
        "b43b",
        "the old state store is deleted before the new one is current",
        SNAPSHOTS,
        '        directory = f"{root}/{name}"\n        files.make_directory(directory)\n'
        "        files.rename(wanted[-1]",
        '        directory = f"{root}/{name}"\n        files.make_directory(directory)\n'
        '        for other in files.names(f"{root}/{generations.current(Path(root))}"):\n'
        '            files.unlink(f"{root}/{generations.current(Path(root))}/{other}")\n'
        "        files.rename(wanted[-1]",
        T_SNAPSHOTS + "test_a_power_cut_at_any_step_leaves_the_old_base_or_the_new_one",
    ),
    # Between nodes
    _mutant(
        "b49t",
        "a node that lost its data comes back as the one it was",
        "corvo/consensus/cluster/transport.py",
        '                return "incarnation"\n',
        '                return ""\n',
        T_TRANSPORT + "test_a_node_that_lost_its_disk_is_another_one",
    ),
    _mutant(
        "f22",
        "nodes of another cluster are let in",
        "corvo/consensus/cluster/peer_protocol.py",
        "if hello.cluster_id != self._cluster_id:",
        "if False:",
        "tests/unit/consensus/cluster/test_peer_protocol.py",
    ),
    _mutant(
        "f26",
        "states that differ are taken for equal",
        "corvo/consensus/cluster/divergence.py",
        "        if own == hash:\n",
        "        if len(own) == len(hash):\n",
        "tests/unit/consensus/cluster/test_divergence.py",
    ),
    # Time
    _mutant(
        "b54",
        "the clock of the state goes back with a leader whose clock is behind",
        "corvo/fsm/state/state.py",
        "self.stamp_ns = max(self.meta.stamp_ns, stamp_ns)",
        "self.stamp_ns = stamp_ns",
        T_MACHINE + "test_stamps_never_go_back",
    ),
    # The log on disk
    _mutant(
        "b55",
        "a flush that failed is taken for done",
        WAL,
        "        if error:\n            self._fail(self.path if segment",
        "        if error and segment is None:\n            self._fail(self.path if segment",
        "tests/unit/consensus/test_single_log.py::test_a_failed_write_stops_everything",
    ),
    _mutant(
        "b56",
        "half a record counts",
        "corvo/_fast/codec/wal_record.py",
        '    if tail != _ZEROS[size - _OVERHEAD - length] + crc.to_bytes(4, "little"):\n'
        "        return None\n",
        '    crc = int.from_bytes(tail[-4:], "little")\n',
        T_WAL + "test_every_prefix_of_the_last_write_recovers_to_the_last_whole_record",
    ),
    _mutant(
        "b57",
        "damage in the middle is cut off like a torn write",
        "corvo/consensus/wal/segment.py",
        "    if later >= 0:\n",
        "    if False:\n",
        T_WAL + "test_damage_before_a_later_write_is_refused",
    ),
    _mutant(
        "b58a",
        "entries that were cut off come back after a restart",
        WAL,
        "            while entries and entries[-1].index > record.index:\n"
        "                entries.pop()\n",
        "",
        T_WAL + "test_truncated_entries_stay_away",
    ),
    Mutant(
        "b58b",
        "what a torn write left stays, and goes on where the next one ends",
        (
            Edit(
                "corvo/consensus/wal/segment.py",
                "        if record is None or record.previous != crc:\n",
                "        if record is None:\n",
            ),
            Edit(WAL, "        if found.torn_end > found.end:\n", "        if False:\n"),
        ),
        (T_WAL + "test_what_a_torn_write_left_does_not_follow_the_next_one",),
    ),
    _mutant(
        "b58c",
        "records of an earlier life of the file parse",
        WAL,
        "Writer(head.salt, head.crc, HEAD_SIZE))\n        start",
        "Writer(head.salt, 0, HEAD_SIZE))\n        start",
        T_WAL + "test_entries_term_and_vote_survive",
    ),
    _mutant(
        "b58d",
        "a trimmed segment takes the file of one that has no name yet",
        WAL,
        "if not self._attached or self._retiring is not None or not self._is_free(0):",
        "if not self._attached or not self._is_free(0):",
        T_WAL + "test_a_segment_that_has_no_name_yet_keeps_its_file",
    ),
    _mutant(
        "b58e",
        "a new spare takes the file of a segment that has no name yet",
        WAL,
        "        if self._retiring is not None:\n            return not self.full",
        "        if False:\n            return not self.full",
        T_WAL + "test_a_segment_that_has_no_name_yet_keeps_its_file",
    ),
    _mutant(
        "b59",
        "an entry counts before the name of its segment is on disk",
        WAL,
        '        self._enqueue(_Job(None, 0, b"", SYNC_FULL, named))\n',
        "        named()\n",
        T_WAL + "test_a_segment_counts_only_after_its_name_is_flushed",
    ),
    _mutant(
        "b60",
        "zeros are taken for damage",
        "corvo/consensus/wal/segment.py",
        "    if data[offset:] == bytes(rest_size):\n",
        "    if rest_size and data[offset] == 0:\n"
        '        raise _damage(path, offset, "zeros")\n'
        "    if data[offset:] == bytes(rest_size):\n",
        T_WAL + "test_entries_term_and_vote_survive",
    ),
    # The state and the state store
    _mutant(
        "b61",
        "entries without data do not count as applied",
        "corvo/fsm/machine.py",
        "        meta.applied_index = index\n",
        "        if data:\n            meta.applied_index = index\n",
        T_MACHINE + "test_empty_entry_only_advances",
    ),
    _mutant(
        "b62",
        "the log is trimmed before the state store has its entries",
        "corvo/engine/flusher.py",
        "            self._log.sync()  # LMDB is never ahead of the log on disk\n",
        "            self._log.sync()\n            self._log.trim(1 << 60)\n",
        T_PIPELINE + "test_a_full_disk_under_the_base_is_not_fatal",
        T_PIPELINE + "test_the_base_is_flushed_when_idle_and_the_log_may_go",
    ),
    _mutant(
        "b63",
        "the state store is not synced to the disk",
        "corvo/storage/lmdb.py",
        "                readahead=False,\n                max_r",
        "                readahead=False,\n                sync=False,\n                max_r",
        "tests/contract/test_state_store.py::test_every_write_is_flushed_with_its_meta_page",
    ),
    _mutant(
        "b64",
        "a full map is an error like any other",
        "corvo/storage/lmdb.py",
        "if isinstance(error, lmdb.MapFullError) or code in NO_SPACE or cut_short:",
        "if code in NO_SPACE or cut_short:",
        "tests/contract/test_state_store.py::test_a_full_map_changes_nothing",
    ),
    _mutant(
        "b65",
        "an unknown op is passed over",
        "corvo/fsm/machine.py",
        '        raise UnknownOp(f"entry {index} has op',
        '        return lambda core, payload: None\n        raise UnknownOp(f"entry {index} has op',
        T_MACHINE + "test_unknown_op_stops_the_node_before_anything_is_applied",
    ),
    _mutant(
        "b66",
        "results depend on the hash of a text, which differs from process to process",
        "corvo/fsm/state/state.py",
        "        block = self.last_block = self.block.done()\n",
        "        block = self.last_block = self.block.done() + b'%d' % hash('job')\n",
        T_MACHINE + "test_the_same_bytes_whatever_the_surroundings",
    ),
    _mutant(
        "b67",
        "the mirror is not told of what its outbox had no room for",
        "corvo/fsm/state/outbox.py",
        "            floor = self._rows[self._dropped - 1][0] if self._dropped else self.floor\n",
        "            floor = self.floor\n",
        "tests/unit/fsm/state/test_outbox.py::test_it_keeps_to_its_bound_and_raises_its_floor",
    ),
    _mutant(
        "b68a",
        "a job is promoted that was due when the op was made",
        "corvo/fsm/ops/due.py",
        "        if job_state == states.REFUSED or job.scheduled_ns > state.stamp_ns:\n",
        "        if job_state == states.REFUSED:\n",
        "tests/unit/fsm/ops/test_retry.py::test_promotion_checks_state_and_time_again",
    ),
    _mutant(
        "b68b",
        "a lease expires that was due when the op was made",
        "corvo/fsm/ops/due.py",
        "if job is None or job.state != ACTIVE or job.lease_expires_ns > state.stamp_ns:",
        "if job is None or job.state != ACTIVE:",
        "tests/unit/fsm/ops/test_leases.py::test_expiry_checks_state_and_time_again",
    ),
)

MUTANTS = {mutant.name: mutant for mutant in _ALL}
SCENARIOS = sorted({test for mutant in _ALL for test in mutant.scenario})

# Known bugs for which there is no place in this server.
NO_PLACE = {
    "b33": "there are no joint configurations: members change one at a time",
    "b52": "there are no lease reads: every consistent read asks a majority",
}
