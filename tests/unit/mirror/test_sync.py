"""Which queues the mirror knows after a round."""

from typing import cast

import pytest
from lib.mirror_check import MemorySnapshot

from corvo.mirror.sync import SyncBatch
from corvo.model import Queue
from corvo.storage.memory import MemoryStore
from corvo.storage.reader import Snapshot

OLD = Queue(1, "alpha")
NEW = Queue(2, "alpha")
ENDED = Queue(1, "alpha")
ENDED.destroyed = True


@pytest.mark.parametrize(
    ("known", "read", "left"),
    [
        ([OLD], [("beta", None)], {1}),
        ([OLD], [("alpha", None), ("\x7f1", ENDED)], {1}),
        ([ENDED], [("\x7f1", None)], set()),
        # Destroyed, gone, and made anew, before the mirror has seen any of it:
        ([OLD], [("alpha", NEW), ("\x7f1", None)], {2}),
        ([OLD], [("alpha", NEW)], {2}),
        ([OLD], [("\x7f1", None)], set()),
    ],
)
def test_queues_that_are_gone_are_forgotten(
    known: list[Queue], read: list[tuple[str, Queue | None]], left: set[int]
) -> None:
    found = SyncBatch()
    found.queues = read
    snapshot = cast(Snapshot, MemorySnapshot(MemoryStore()))
    queues = found.name_queues(snapshot, {queue.number: queue for queue in known})
    assert set(queues) == left
