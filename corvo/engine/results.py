"""Requests that wait for the end of a job. The feed tells which jobs have ended."""

import logging
from collections.abc import Callable
from typing import Any

from corvo.engine.feed import Feed
from corvo.engine.parked import Deadlines, Parked
from corvo.events import END_EVENTS, Event
from corvo.platform.loop import Loop

logger = logging.getLogger(__name__)


class ResultWait(Parked):
    """One request that waits for the end of a job; `answer(request)` is called once."""

    __slots__ = ("answer", "job_id", "request")

    def __init__(
        self, job_id: str, deadline_ns: int, request: Any, answer: Callable[[Any], None]
    ) -> None:
        super().__init__(deadline_ns)
        self.job_id = job_id
        self.request = request  # None once answered or dropped
        self.answer = answer


class WaitingForResults:
    """Requests that wait for the end of jobs: a subscriber of the feed while there are any. One
    timer serves all deadlines."""

    def __init__(self, loop: Loop, elapsed_ns: Callable[[], int], feed: Feed) -> None:
        self._loop = loop
        self._elapsed_ns = elapsed_ns  # the clock of the deadlines
        self._feed = feed
        # Waits by job id; no empty dicts. Each wait is in here and in `_deadlines`, or in neither.
        self._jobs: dict[str, dict[ResultWait, None]] = {}
        self._deadlines = Deadlines()
        self._timer: Any = None  # None = not set
        self._armed_ns = 0  # when the timer fires, on the clock of the deadlines
        self.count = 0  # of waits; the feed is subscribed to while it is not 0

    def park(self, wait: ResultWait) -> None:
        """Let a request wait for its job."""
        if not self.count:
            self._feed.subscribe(self._on_events)
        self._jobs.setdefault(wait.job_id, {})[wait] = None
        self._deadlines.add(wait)
        self.count += 1
        self._arm()

    def drop(self, wait: ResultWait) -> None:
        """Forget a request whose client is gone."""
        if wait.request is not None:
            self._remove(wait)
            wait.request = None

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            if event.type in END_EVENTS and event.job_id in self._jobs:
                for wait in list(self._jobs[event.job_id]):
                    self._answer(wait)

    def answer_all(self) -> None:
        """Answer all requests with the present state of their jobs."""
        for waits in list(self._jobs.values()):
            for wait in list(waits):
                self._answer(wait)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check_time(self) -> None:
        """Answer the requests whose deadline has passed."""
        self.close()
        for wait in self._deadlines.take_expired(self._elapsed_ns()):
            assert isinstance(wait, ResultWait)
            self._answer(wait)
        self._arm()

    def _answer(self, wait: ResultWait) -> None:
        self._remove(wait)
        request, wait.request = wait.request, None
        try:
            wait.answer(request)
        except Exception:
            logger.exception("answering a request failed")

    def _remove(self, wait: ResultWait) -> None:
        self._deadlines.remove(wait)
        self.count -= 1
        waits = self._jobs[wait.job_id]
        del waits[wait]
        if not waits:
            del self._jobs[wait.job_id]
        if not self.count:
            self._feed.unsubscribe(self._on_events)

    def _arm(self) -> None:
        due_ns = self._deadlines.next_ns()
        if not due_ns or (self._timer is not None and self._armed_ns <= due_ns):
            return
        self.close()
        self._armed_ns = due_ns
        delay = max(0, due_ns - self._elapsed_ns()) / 1e9
        self._timer = self._loop.call_later(delay, self.check_time)
