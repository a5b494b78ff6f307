"""Whether a view tells the same story as the base, row by row."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from corvo._fast.codec import keys
from corvo.mirror import rows, schema
from corvo.mirror.file import MirrorFile
from corvo.model import PRIORITY_NAMES, STATES, Queue
from corvo.storage.memory import MemoryStore
from corvo.storage.records import jobs as job_records
from corvo.storage.records import queues as queue_records
from lib.consistency import read_jobs

T = TypeVar("T")


class MemorySnapshot:
    """The contract of `corvo.storage.reader.Snapshot` over a base in memory."""

    def __init__(self, state_store: MemoryStore) -> None:
        self._state_store = state_store

    def get(self, key: bytes) -> bytes | None:
        return self._state_store.get(key)

    def take(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found = []
        for row in self._state_store.scan(prefix, start):
            if len(found) == limit:
                break
            found.append(row)
        return found

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._state_store.scan(prefix)


class MemoryReader:
    """The contract of `corvo.storage.reader.Reader` over a base in memory."""

    def __init__(self, state_store: MemoryStore) -> None:
        self.state_store = state_store

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[MemorySnapshot]:
        yield MemorySnapshot(self.state_store)


def run(work: Coroutine[Any, Any, T], runner: asyncio.Runner) -> T:
    return runner.run(work)


async def catch_up(view: MirrorFile) -> None:
    """Step until there is nothing new, full text included."""
    while view.scan is not None or await view.step() or view.behind:
        await view.step()
    while await view.index_texts():
        pass


async def check_view(view: MirrorFile, state_store: MemoryStore) -> None:
    """Compare every row with its document, and the facets and full text with the rows."""
    table = view._writer.all
    queues = {}
    wanted = []
    for key, row in state_store.scan(keys.QUEUE):
        queue = queue_records.decode_queue(keys.parse_queue(key), row)
        queues[queue.number] = queue
        wanted.append(rows.queue_values(keys.parse_queue(key), queue))
    assert sorted(await table("SELECT * FROM queues")) == sorted(wanted)
    jobs = read_jobs(state_store)
    columns = schema.REQUIRED + schema.OPTIONAL
    stored = await table(f"SELECT {', '.join(columns)} FROM jobs ORDER BY id")
    numbers = {row[1]: row[0] for row in stored}
    assert [row[1] for row in stored] == sorted(jobs)
    for row in stored:
        job = jobs[row[1]]
        shape, values = rows.new_values(job, queues[job.queue_number].name)
        values[0] = row[0]
        wanted_row = dict(zip(schema.columns_of(shape), values, strict=True))
        plain = {name: value for name, value in zip(columns, row, strict=True) if value}
        assert plain == {name: value for name, value in wanted_row.items() if value}
    await _check_parts(table, state_store, jobs, numbers)
    await _check_facets(table, view)
    await _check_reports(table, queues)
    await table("INSERT INTO jobs_fts (jobs_fts) VALUES ('integrity-check')")


async def _check_parts(
    table: Any, state_store: MemoryStore, jobs: Any, numbers: dict[str, int]
) -> None:
    errors, tags = [], []
    for job in jobs.values():
        for slot in range(job.error_count):
            row = state_store.get(keys.error(job.id, slot))
            assert row is not None
            record = job_records.decode_error(job.id, row)
            errors.append(rows.error_values(numbers[job.id], slot, job.id, record))
        own = rows.tags_of(job) if job.tags else {}
        tags += [(key, value, numbers[job.id]) for key, value in own.items()]
    assert sorted(await table("SELECT * FROM job_errors")) == sorted(errors)
    assert sorted(await table("SELECT * FROM job_tags")) == sorted(tags)
    batches = [
        rows.batch_values(job_records.decode_batch(keys.parse_batch(key), row))
        for key, row in state_store.scan(keys.BATCH)
    ]
    assert sorted(await table("SELECT * FROM batches")) == sorted(batches)
    workers = [
        rows.worker_values(job_records.decode_worker(keys.parse_worker(key), row))
        for key, row in state_store.scan(keys.WORKER)
    ]
    assert sorted(await table("SELECT * FROM workers")) == sorted(workers)
    schedules = [
        rows.schedule_values(job_records.decode_schedule(keys.parse_schedule(key), row))
        for key, row in state_store.scan(keys.SCHEDULE)
    ]
    assert sorted(await table("SELECT * FROM schedules")) == sorted(schedules)
    locks = []
    for key, row in state_store.scan(keys.UNIQUE):
        job_id, expires_ns, full_key = job_records.decode_lock(row)
        locks.append((key, full_key.decode(), job_id, expires_ns or None))
    text = "SELECT key, unique_key, job_id, expires_at FROM unique_locks"
    assert sorted(await table(text)) == sorted(locks)


async def _check_reports(table: Any, queues: dict[int, Queue]) -> None:
    """All queues together are the sum of the queues, and what a queue was last is what it is."""
    sums = "sum(enqueued), sum(completed), sum(failed) FROM report_minutes"
    everywhere = await table(f"SELECT minute, {sums} WHERE queue = 0 GROUP BY minute")
    assert everywhere == await table(f"SELECT minute, {sums} WHERE queue != 0 GROUP BY minute")
    names = ", ".join(STATES)
    text = f"SELECT {names} FROM report_states WHERE queue = ? ORDER BY minute DESC LIMIT 1"
    total = [0] * len(STATES)
    for queue in queues.values():
        counts = [queue.jobs(state) for state in range(len(STATES))]
        assert await table(text, (queue.number,)) == [tuple(counts)]
        total = [a + b for a, b in zip(total, counts, strict=True)]
    if queues:
        assert await table(text, (0,)) == [tuple(total)]


async def _check_facets(table: Any, view: MirrorFile) -> None:
    for column in ("state", "queue", "priority"):
        text = f"SELECT {column}, count(*) FROM jobs GROUP BY {column}"
        wanted = dict(await table(text))
        if column == "priority":
            wanted = {PRIORITY_NAMES[number]: count for number, count in wanted.items()}
        assert view.facets.split(view.facets.all, column) == wanted
    assert set(view.facets.split(view.facets.all, "state")) <= set(STATES)
    for key, value, count in await table(
        "SELECT key, value, count(*) FROM job_tags GROUP BY key, value"
    ):
        assert view.facets.split(view.facets.all, f"tag:{key}")[value] == count
