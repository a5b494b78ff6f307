"""Which slots of a schedule are fired now: computed by the leader, carried out by apply.

A slot that is late by more than SLOT_LATE_MAX_NS was missed: the server was down, or time jumped.
What happens to missed slots is up to the schedule: `none` drops them, `last` runs the last one,
`all` runs the last `catch_up_limit` ones, each with its own slot time.
"""

import logging
from typing import Final

from corvo import limits, ops
from corvo._fast.codec.layouts import encode_fields
from corvo.errors import ScheduleError
from corvo.model import Schedule
from corvo.platform import cron

logger = logging.getLogger(__name__)

# Positions in model.CATCH_UPS.
NONE: Final = 0
LAST: Final = 1


def firings(schedule: Schedule, now_ns: int) -> list[bytes]:
    """The firings, for FireSchedule, that bring a due schedule up to now."""
    due_ns = schedule.next_ns
    occurrences, next_ns = _due_occurrences(schedule, now_ns)
    if schedule.catch_up == NONE:
        occurrences = [
            occurrence_ns
            for occurrence_ns in occurrences
            if now_ns - occurrence_ns <= limits.OCCURRENCE_LATE_MAX_NS
        ]
    if not occurrences:
        return [_run_values(schedule, due_ns, 0, next_ns)]
    items = []
    for occurrence_ns, following_ns in zip(occurrences, [*occurrences[1:], next_ns], strict=True):
        items.append(_run_values(schedule, due_ns, occurrence_ns, following_ns))
        due_ns = following_ns
    return items


def _run_values(schedule: Schedule, due_ns: int, occurrence_ns: int, next_ns: int) -> bytes:
    values = (schedule.id, schedule.revision, due_ns, occurrence_ns, next_ns)
    return encode_fields(ops.RUN_LAYOUT, values)


def _due_occurrences(schedule: Schedule, now_ns: int) -> tuple[list[int], int]:
    """The slots up to now, as many as may be caught up, and the one after them."""
    due_ns = schedule.next_ns
    try:
        expression = cron.parse(schedule.cron, schedule.timezone)
    except ScheduleError as error:
        logger.error("schedule %s has no further run: %s", schedule.id, error.message)
        return [due_ns], 0
    count = schedule.catch_up_limit if schedule.catch_up > LAST else 1
    next_ns = expression.next(due_ns)
    if not 0 < next_ns <= now_ns:
        return [due_ns], next_ns
    occurrences = expression.latest(due_ns, now_ns, count)
    return [due_ns, *occurrences][-count:], expression.next(occurrences[-1])


def next_after_change(expression: cron.Cron, now_ns: int, due_ns: int) -> int:
    """The next run of a schedule that is made or changed now. A slot that is already due under
    the old settings (`due_ns`, 0 = none), and not fired yet, is not lost."""
    return expression.next(min(now_ns, due_ns - 1) if due_ns else now_ns)
