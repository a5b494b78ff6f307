"""Long reads in steps: one step of one read in each turn of the loop, so that other requests are
served in between. A read that ends in its first step costs nothing more."""

import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from corvo._fast.http.exchange import Request, reply_error
from corvo.engine.service import Service
from corvo.errors import CorvoError

DOCUMENTS_PER_STEP: Final = 50

logger = logging.getLogger(__name__)


class Steps:
    """The reads that have steps left, in order; they take turns."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._reads: deque[tuple[Request, Iterator[None]]] = deque()

    def run(self, request: Request, steps: Iterator[None]) -> None:
        """Do the first step at once and the others later; the last one answers the request."""
        for _ in steps:
            self._reads.append((request, steps))
            if len(self._reads) == 1:
                self._service.later(self._step)
            return

    def _step(self) -> None:
        request, steps = self._reads.popleft()
        if not request.abandoned and self._goes_on(request, steps):
            self._reads.append((request, steps))
        if self._reads:
            self._service.later(self._step)

    @staticmethod
    def _goes_on(request: Request, steps: Iterator[None]) -> bool:
        try:
            for _ in steps:
                return True
        except CorvoError as error:
            reply_error(request, error)
        except Exception:
            logger.exception("a step of %s failed", request.path)
            reply_error(request, CorvoError("internal error"))
        return False
