"""Starts and stops leader-only services on role changes.

A leader serves once it has applied all entries from before its term. At that point its own no-op is
applied, and the last stamp of the state is known, which its own stamps must not fall below. Only
then it takes ops, and the scheduler and housekeeping run. All existing leases get a grace period
(`corvo.engine.scheduler`), because their workers could not reach a leader for a while.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from corvo.engine.housekeeping import Housekeeping
from corvo.engine.pipeline import Pipeline
from corvo.engine.scheduler import Scheduler
from corvo.errors import CorvoError
from corvo.fsm.machine import Machine
from corvo.platform.clock import Clock

logger = logging.getLogger(__name__)


class Electable(Protocol):
    """A log whose leader can change."""

    on_leader: Callable[[int], None]
    on_follower: Callable[[str], None]


class LeaderLog(Protocol):
    """A log that may be led by another node, as seen by those who serve requests."""

    started: bool

    @property
    def leader_id(self) -> str:
        """The member that leads, empty if none is known."""

    @property
    def hears_leader(self) -> bool:
        """Whether another node leads and was heard lately."""

    def read(self, on_confirmed: Callable[[bool], None]) -> None:
        """Call back when this node has applied all that was acknowledged before the call."""

    def fail_reads(self) -> None:
        """Call back all reads with False."""


class Membership(Protocol):
    """Changes of the members of a cluster, on the leader."""

    def check_proof(self, given: str, *facts: str) -> None:
        """Raises Forbidden unless the facts come from a node that knows the cluster secret."""

    def add(
        self, member_id: str, raft: str, http: str, answer: Callable[[bool | CorvoError], None]
    ) -> None:
        """Add a learner with its addresses; answers whether it is new."""

    def remove(self, name: str, answer: Callable[[CorvoError | None], None]) -> None:
        """Remove a member."""

    def promote(self, name: str, answer: Callable[[CorvoError | None], None]) -> None:
        """Make a learner a voter."""

    def transfer(self, name: str) -> str:
        """Let another member lead, the best one if none is named; its name."""


class Leadership:
    """Starts and stops the scheduler, housekeeping and the intake of ops as the log reports."""

    def __init__(
        self,
        log: Electable,
        clock: Clock,
        machine: Machine,
        pipeline: Pipeline,
        scheduler: Scheduler,
        housekeeping: Housekeeping,
    ) -> None:
        self._clock = clock
        self._machine = machine
        self._pipeline = pipeline
        self._scheduler = scheduler
        self._housekeeping = housekeeping
        # The term in which this node leads and does not serve yet, else 0.
        self._term = 0
        self.serving = False  # implies `_term` == 0
        self.on_change: list[Callable[[], None]] = []  # the leader or `serving` has changed
        log.on_leader = self._on_leader
        log.on_follower = self._on_follower
        pipeline.on_applied.append(self._look)

    def _on_leader(self, term: int) -> None:
        logger.info("elected in term %d", term)
        self._stop()
        self._term = term
        self._look()

    def _on_follower(self, leader_id: str) -> None:
        self._stop()
        if leader_id:
            logger.info("following %s", leader_id)
        self._notify()

    def _look(self) -> None:
        """Serve, once all entries from before this term are applied."""
        if self._term and self._machine.applied_term >= self._term:
            self._term = 0
            self.serving = True
            self._clock.observe(self._machine.stamp_ns)
            self._pipeline.lead()
            self._scheduler.start()
            self._housekeeping.start()
            logger.info("serving as the leader")
            self._notify()

    def _stop(self) -> None:
        self._term = 0
        if self.serving:
            self.serving = False
            logger.info("no longer the leader")
            self._scheduler.close()
            self._housekeeping.close()
            self._pipeline.follow()

    def close(self) -> None:
        """Stop the leader-only services, regardless of the role in the log."""
        self._stop()

    def _notify(self) -> None:
        for callback in self.on_change:
            callback()
