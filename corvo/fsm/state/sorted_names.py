"""Names in order, of which one is added or removed cheaply and pages are read from any place."""

from bisect import bisect_left, bisect_right, insort
from typing import Final

_RUN_MAX: Final = 1_000


class SortedNames:
    """A sorted set of names, in runs of limited length."""

    def __init__(self) -> None:
        self._runs: list[list[str]] = []  # none is empty
        self._firsts: list[str] = []  # the first name of each run

    def add(self, name: str) -> None:
        """Add a name that is not in the set."""
        if not self._runs:
            self._runs.append([name])
            self._firsts.append(name)
            return
        at = max(0, bisect_right(self._firsts, name) - 1)
        run = self._runs[at]
        insort(run, name)
        self._firsts[at] = run[0]
        if len(run) > _RUN_MAX:
            half = run[_RUN_MAX // 2 :]
            del run[_RUN_MAX // 2 :]
            self._runs.insert(at + 1, half)
            self._firsts.insert(at + 1, half[0])

    def remove(self, name: str) -> None:
        """Remove a name of the set."""
        at = bisect_right(self._firsts, name) - 1
        run = self._runs[at]
        position = bisect_left(run, name)
        assert run[position] == name, f"{name} is not in the set"
        del run[position]
        if run:
            self._firsts[at] = run[0]
        else:
            del self._runs[at]
            del self._firsts[at]

    def after(self, name: str, limit: int) -> list[str]:
        """Return the first `limit` names above `name`."""
        found: list[str] = []
        for at in range(max(0, bisect_right(self._firsts, name) - 1), len(self._runs)):
            run = self._runs[at]
            first = bisect_right(run, name)
            found += run[first : first + limit - len(found)]
            if len(found) >= limit:
                break
        return found
