"""Power cuts: what each may leave of a real workload, and what a start makes of it."""

import itertools
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from crash.disk import (
    PAGE,
    SECTOR,
    Image,
    Name,
    Step,
    Sync,
    Told,
    Write,
    nothing,
    some,
    whole,
)
from crash.engine import IDENTITY, SEGMENT, Engine, Model, all_rows
from crash.recovery import recovered

from corvo.platform.files import SYNC_DATA

# Where images are built: in memory where possible, for a flush per start is slow on a disk.
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Trace(NamedTuple):
    """A workload to cut the power in."""

    durable: bool
    steps: list[Step]
    entries: dict[int, tuple[int, bytes]]
    model: Model


def record(durable: bool, seed: int, lives: int = 6, entries: int = 40) -> Trace:
    """Several lives on one directory, most of them killed at some step."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        engine = Engine(Path(root), durable, seed)
        for life in range(lives):
            engine.life(entries, draw.randrange(20, 200) if life % 3 else 0, draw.random() < 0.5)
    engine.disk.forget_zeros()
    return Trace(durable, engine.disk.steps, engine.entries, Model(engine.entries))


# How images of a kind are made of a trace, without end.
Kind = Callable[[Trace, random.Random], Iterator[Image]]


def cut(trace: Trace, at: int) -> Image:
    """The power is cut after so many steps."""
    return Image(trace.steps[:at])


def _places(trace: Trace, draw: random.Random, wanted: Callable[[Step], bool]) -> Iterator[int]:
    """Numbers of steps of a sort, in random order, again and again."""
    found = [at for at, step in enumerate(trace.steps) if wanted(step)]
    assert found
    while True:
        draw.shuffle(found)
        yield from found


def prefixes(trace: Trace, draw: random.Random) -> Iterator[Image]:
    """Every byte prefix of the last write to the log; nothing else is lost."""

    def of_log(step: Step) -> bool:
        return isinstance(step, Write) and any(step.data) and step.offset % PAGE != 0

    for at in _places(trace, draw, of_log):
        last = trace.steps[at]
        assert isinstance(last, Write)
        for size in draw.sample(range(len(last.data)), len(last.data)):
            image = cut(trace, at)
            image.pending.append(last._replace(data=last.data[:size]))
            image.keep(whole)
            yield image


def lost_pages(trace: Trace, draw: random.Random) -> Iterator[Image]:
    """Any pages that were not flushed are lost."""
    yield from _unflushed(trace, draw, PAGE)


def torn_pages(trace: Trace, draw: random.Random) -> Iterator[Image]:
    """Any sectors that were not flushed are lost."""
    yield from _unflushed(trace, draw, SECTOR)


def _unflushed(trace: Trace, draw: random.Random, size: int) -> Iterator[Image]:
    for at in _places(trace, draw, lambda step: isinstance(step, Write)):
        image = cut(trace, at + 1)
        image.keep(some(draw, size))
        yield image


def lost_names(trace: Trace, draw: random.Random) -> Iterator[Image]:
    """The newest changes of names are lost; of writes that were not flushed, any part."""
    for at in _places(trace, draw, lambda step: isinstance(step, Name)):
        until = min(len(trace.steps), at + 1 + draw.randrange(12))
        image = cut(trace, until)
        keep = draw.choice([whole, nothing, some(draw, PAGE)])
        image.keep(keep, draw.randrange(len(image.changes) + 1))
        yield image


def stale_records(trace: Trace, draw: random.Random) -> Iterator[Image]:
    """A segment that is used again holds the records of its earlier life: the zeros over them
    are lost, although they were flushed."""
    steps = [step for step in trace.steps if not (isinstance(step, Write) and step.zeros)]
    first = next(
        at for at, step in enumerate(trace.steps) if isinstance(step, Write) and step.zeros
    )
    assert len(steps) < len(trace.steps)
    while True:
        image = Image(steps[: draw.randrange(first, len(steps))])
        image.keep(whole)
        yield image


def base_commits(trace: Trace, draw: random.Random) -> Iterator[Image]:
    """Inside a commit of the state store: any sectors of its pages, maybe the meta page."""
    state_store = _inode_of(trace, "data.mdb")

    def of_state_store(step: Step) -> bool:
        return isinstance(step, Write | Sync) and step.inode == state_store

    for at in _places(trace, draw, of_state_store):
        image = cut(trace, at + 1)
        image.keep(some(draw, draw.choice([SECTOR, PAGE])))
        yield image


def first_start(trace: Trace, draw: random.Random) -> Iterator[Image]:
    """A new data directory: everything that was not flushed in any state."""
    first = next(at for at, step in enumerate(trace.steps) if isinstance(step, Told) and step.term)
    return _any_state(trace, draw, first + 10)


def anything(trace: Trace, draw: random.Random) -> Iterator[Image]:
    """A cut anywhere, and everything that was not flushed in any state."""
    return _any_state(trace, draw, len(trace.steps))


def _any_state(trace: Trace, draw: random.Random, stop: int) -> Iterator[Image]:
    while True:
        image = cut(trace, draw.randrange(stop + 1))
        image.keep(some(draw, draw.choice([SECTOR, PAGE])), draw.randrange(len(image.changes) + 1))
        yield image


KINDS: dict[str, Kind] = {
    "every byte prefix of the last write": prefixes,
    "lost pages": lost_pages,
    "torn pages": torn_pages,
    "lost names": lost_names,
    "stale records in a recycled segment": stale_records,
    "inside a commit of the state": base_commits,
    "a first start": first_start,
    "everything at once": anything,
}


def _inode_of(trace: Trace, name: str) -> int:
    for step in trace.steps:
        if isinstance(step, Name):
            for state_store, inode in step.changes:
                if state_store == name:
                    return inode
    raise AssertionError(name)


class Outcome(NamedTuple):
    """What a start found: the newest entry, and how many acknowledged ones are missing."""

    index: int
    lost: int


def judge(trace: Trace, image: Image, told: Told) -> Outcome:
    """Recover an image with the real log, base and machine, and compare every row with the model
    at that index; then write on, and recover again."""
    root = Path(tempfile.mkdtemp(dir=SCRATCH))
    try:
        image.build(root)
        index = _recover(trace, root, told)
        return Outcome(index, max(0, told.acknowledged - index))
    finally:
        shutil.rmtree(root)


def _recover(trace: Trace, root: Path, told: Told) -> int:
    if not (root / "data").is_dir():
        assert told == Told(0, 0, 0), "the data directory is gone"
        return 0
    with recovered(root / "data", IDENTITY, SEGMENT) as state:
        index = state.machine.applied_index
        assert state.wal.term >= told.term, "the term went back"
        assert index >= told.flushed, f"entry {told.flushed} was flushed, {index} is the last"
        if trace.durable:
            assert index >= told.acknowledged, f"{told.acknowledged} is lost, {index} is the last"
        state.check()
        assert all_rows(state.state_store) == trace.model.rows[index]
        term = state.wal.term + 1
        state.wal.set_hard_state(term, "node-1", _nothing)
        for more in range(1, 4):
            state.wal.append(index + more, term, b"", SYNC_DATA, _nothing)
    with recovered(root / "data", IDENTITY, SEGMENT) as state:
        assert state.machine.applied_index == index + 3, "what was written on is lost"
    return index


def _nothing() -> None:
    pass


def campaign(trace: Trace, kind: Kind, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Judge so many images of a kind: counts, and what went wrong."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for image in itertools.islice(kind(trace, random.Random(seed)), count):
        counts["images"] += 1
        try:
            outcome = judge(trace, image, image.told)
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
            continue
        counts["exact"] += 1
        counts["entries lost"] += outcome.lost
        counts["most lost"] = max(counts["most lost"], outcome.lost)
    return counts, wrong
