"""Random programs, mirrored: at any time the mirror can be killed, set back by a power cut, stalled
past the bound of the outbox, or begun again, and once it has caught up it equals the base row by
row."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from contract.test_replay import Program
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from lib.consistency import check_machine
from lib.mirror_check import MemoryReader, catch_up, check_view

from corvo import limits
from corvo._fast.codec import keys
from corvo.fsm.state.outbox import Outbox
from corvo.mirror.file import MirrorFile, Missed
from corvo.storage.reader import Reader
from corvo.storage.records.outbox import decode_state

EPOCH = b"epoch"


class Mirrored(Program):
    """`reborn` keeps an outbox, and a view follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox = self.reborn.keep_outbox(EPOCH)
        self.directory = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.views = 0
        self.mirror_file = self.open()

    def open(self, path: Path | None = None) -> MirrorFile:
        reader = cast(Reader, MemoryReader(self.bases[1]))
        stored = self.bases[1].get(keys.OUTBOX_STATE)
        assert stored is not None
        if path is None:
            self.views += 1
            path = self.directory / f"{self.views}.sqlite"
        return self.runner.run(MirrorFile.open(path, reader, *decode_state(stored)))

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    @rule()
    def start(self) -> None:
        super().start()
        self.outbox = self.reborn.keep_outbox(b"another")

    @rule()
    def flush_both(self) -> None:
        self.lived.flush()
        self.reborn.flush()
        own = (keys.OUTBOX, keys.OUTBOX_STATE)
        rows = self.bases[1]._rows.items()
        assert self.bases[0]._rows == {k: row for k, row in rows if not k.startswith(own)}
        check_machine(self.lived, self.bases[0])

    @rule(steps=st.integers(1, 3))
    def follow_outbox(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.run(self.mirror_file.step())
            except Missed:
                self.run(self.mirror_file.discard())
                self.mirror_file = self.open()

    @rule()
    def index_some_texts(self) -> None:
        self.run(self.mirror_file.index_texts())

    @rule()
    def checkpoint(self) -> None:
        self.run(self.mirror_file.checkpoint())
        self.outbox.read = max(0, self.mirror_file.durable)

    @rule(power_cut=st.booleans())
    def kill_mirror(self, power_cut: bool) -> None:
        """What was not checkpointed may be lost when the power goes."""
        path = self.mirror_file.path
        if power_cut:
            copy = path.with_suffix(".copy")
            shutil.copy(path, copy)  # the file as of the last checkpoint
            self.run(self.mirror_file.close())
            copy.rename(path)
        else:
            self.run(self.mirror_file.close())
        self.mirror_file = self.open(path)

    @rule(keep=st.integers(0, 2))
    def outbox_overflows(self, keep: int) -> None:
        """As if the oldest rows were one too many."""
        rows = self.outbox._rows
        if len(rows) > keep:
            self.outbox.read = rows[len(rows) - keep - 1][0]

    @rule()
    def compare(self) -> None:
        self.reborn.flush()
        try:
            self.run(catch_up(self.mirror_file))
        except Missed:
            self.run(self.mirror_file.discard())
            self.mirror_file = self.open()
            self.run(catch_up(self.mirror_file))
        self.run(check_view(self.mirror_file, self.bases[1]))
        assert self.mirror_file.watermark == self.reborn.applied_index

    def teardown(self) -> None:
        self.compare()
        super().teardown()
        self.run(self.mirror_file.close())
        self.runner.close()
        shutil.rmtree(self.directory)


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes little, so that much happens between the steps of a scan."""
    for name, value in (("DOCUMENTS", 20), ("FLUSHES", 3), ("SCAN_ROWS", 5), ("SCAN_SIZE", 500)):
        monkeypatch.setattr(limits, f"MIRROR_{name}", value)


Mirrored.TestCase.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
TestMirrored = Mirrored.TestCase
