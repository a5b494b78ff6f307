"""What a server would find at its next start, without starting one."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from lib.consistency import check_machine

from corvo.consensus.log import Entry
from corvo.consensus.wal.inline_thread import InlineSync
from corvo.consensus.wal.wal import Wal
from corvo.fsm.machine import Machine
from corvo.platform.files import Files
from corvo.storage.data_dir import Identity
from corvo.storage.lmdb import DATA_FILE, STATE, StateStore


class Recovered:
    """The stores of a data directory after recovery, everything replayed and nothing flushed."""

    def __init__(
        self, wal: Wal, state_store: StateStore, machine: Machine, base_index: int
    ) -> None:
        self.wal = wal
        self.state_store = state_store
        self.machine = machine
        self.base_index = base_index

    def check(self) -> None:
        """Flush, then compare all rows, indexes and counters with each other and with memory."""
        self.machine.flush()
        check_machine(self.machine, self.state_store)


def read_identity(data_dir: Path) -> Identity:
    """Who the data belong to."""
    fields = json.loads((data_dir / "identity.json").read_text())
    return Identity(fields["cluster_id"], fields["node_id"], fields["incarnation"])


@contextlib.contextmanager
def recovered(data_dir: Path, identity: Identity, segment_size: int) -> Iterator[Recovered]:
    """Recover in place, as a start does up to the point where it would take a new term."""
    state_store = StateStore.open(data_dir, ballast_size=0)
    try:
        machine = Machine(state_store)
        base_index = machine.applied_index
        files = Files()
        wal = Wal(
            str(data_dir / "wal"),
            identity,
            files,
            InlineSync(files),
            segment_size=segment_size,
            new_salt=lambda: 1,
            on_failed=_raise,
        )
        entries: list[Entry] = wal.open(base_index, machine.applied_term).entries
        for entry in entries:
            machine.apply(entry.index, entry.term, entry.data)
        machine.take_woken()
        machine.take_events()
        yield Recovered(wal, state_store, machine, base_index)
        wal.close()
    finally:
        state_store.close()


def copy_data(data_dir: Path, target: Path) -> Path:
    """What recovery reads of a data directory, to be changed at will."""
    shutil.copytree(data_dir / "wal", target / "wal")
    (target / STATE).mkdir()
    shutil.copy(data_dir / STATE / DATA_FILE, target / STATE / DATA_FILE)
    return target


def _raise(error: Exception) -> None:
    raise error
