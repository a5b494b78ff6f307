"""Pages of queues: by name or by a number, with a filter of names. Very many queues are read in
steps, and a queue that changes meanwhile may be missed or shown twice."""

from collections.abc import Iterator
from typing import Final

from corvo.engine.reads import Reads
from corvo.errors import ValidationError
from corvo.limits import DUE_MAX_NS
from corvo.model import PENDING, PRIORITIES, Queue

SORTS: Final = ("name", "pending", "oldest_ready", "failed")
_READ_PER_STEP: Final = {"name": 1_000, "pending": 1_000, "oldest_ready": 50, "failed": 1_000}

Place = tuple[int, str]  # of a queue in the order of a page


class QueuePage:
    """One page: `read` fills `names`, and `cursor` if more queues follow.

    By `pending` and `failed` the largest number comes first, by `oldest_ready` the queue whose
    ready job waits longest; queues with the same number are in the order of their names.
    """

    def __init__(self, sort: str, name: str, limit: int, cursor: str) -> None:
        self._sort = sort
        self._name = name
        self._limit = limit
        self._after = self._parse(cursor) if cursor else None
        self.names: list[str] = []
        self.cursor = ""

    def _parse(self, cursor: str) -> Place:
        try:
            sort, number, name = bytes.fromhex(cursor).decode().split(":", 2)
            place = int(number), name
        except ValueError:  # UnicodeDecodeError is one
            sort, place = "", (0, "")
        if sort != self._sort:
            raise ValidationError("cursor is not one of this list", field="cursor")
        return place

    def read(self, reads: Reads) -> Iterator[None]:
        """Read queues in steps."""
        places: list[Place] = []
        count = _READ_PER_STEP[self._sort]
        by_name = self._sort == "name"
        after = self._after[1] if self._after is not None and by_name else ""
        step = min(count, self._limit + 1) if by_name and not self._name else count
        while True:
            queues = reads.queues(after, step)
            for queue in queues:
                if self._name and not matches(queue.name, self._name):
                    continue
                place = (self._number(reads, queue), queue.name)
                if self._after is None or place > self._after:
                    places.append(place)
            if not by_name:
                places.sort()
                del places[self._limit + 1 :]
            if len(queues) < step or (by_name and len(places) > self._limit):
                break
            after = queues[-1].name
            yield
        if len(places) > self._limit:
            number, name = places[self._limit - 1]
            self.cursor = f"{self._sort}:{number}:{name}".encode().hex()
        self.names = [name for _, name in places[: self._limit]]

    def _number(self, reads: Reads, queue: Queue) -> int:
        if self._sort == "pending":
            return -queue.jobs(PENDING)
        if self._sort == "failed":
            return -queue.failed_total
        if self._sort == "name" or not queue.jobs(PENDING):
            return DUE_MAX_NS
        oldest = (reads.oldest_ready_ns(queue.name, priority) for priority in range(PRIORITIES))
        return min((ready_ns for ready_ns in oldest if ready_ns), default=DUE_MAX_NS)


def matches(name: str, pattern: str) -> bool:
    """Whether a name contains a text, or is matched by a pattern in which `*` is any text."""
    first, *others = pattern.split("*")
    if not others:
        return pattern in name
    last = others.pop()
    if not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in others:
        at = name.find(part, at, max(at, end))
        if at < 0:
            return False
        at += len(part)
    return at <= end
