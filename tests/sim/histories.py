"""Whether what clients saw can be explained: a search for an order, job by job.

A history is a list of calls with the moments of invocation and return. It is linearizable when
each call can be given one moment between the two so that, taken in that order, every answer is the
one a single server would have given. A call without an answer (a time-out, a lost connection) may
have taken effect at any later moment, or never; a call that was refused must not have had an
effect, which the search sees because no model gives it one.

The search is the one of Wing and Gong with Lowe's memory of what was tried. It is exponential in
the number of calls that overlap, so histories are cut by key: each job, and each register, is
judged by itself. That loses nothing, because a history is linearizable if and only if its parts
are. (A fetch that found nothing is a statement about all jobs of a queue. It is not judged.)
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, NamedTuple

OPEN: Final = 1 << 62  # the moment of return of a call that was never answered

State = Hashable
# Which states may follow from one state when this call, with this answer, takes effect.
Model = Callable[[Any, "Call"], Iterable[Any]]


class Call(NamedTuple):
    """One call of one client, from before it was sent until after it was answered."""

    key: str
    """The job, or the register."""
    name: str
    arguments: tuple[Any, ...]
    answer: Any
    """None when the call has none, or has not returned."""
    invoked: int
    returned: int = OPEN

    @property
    def is_open(self) -> bool:
        """Whether it had no answer."""
        return self.returned == OPEN


class History:
    """Calls in the making, in any unit of time that never goes back."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._open: dict[int, Call] = {}
        self._number = 0

    def invoke(self, now: int, key: str, name: str, *arguments: Any) -> int:
        """A client sends something; returns the number for `answer` and `refuse`."""
        self._number += 1
        self._open[self._number] = Call(key, name, arguments, None, now)
        return self._number

    def answer(self, number: int, now: int, answer: Any, key: str = "") -> None:
        """The call came back. A fetch learns its key, the job, only now."""
        call = self._open.pop(number)
        self.calls.append(call._replace(answer=answer, returned=now, key=key or call.key))

    def refuse(self, number: int) -> None:
        """The call certainly had no effect, and says nothing."""
        del self._open[number]

    def all_calls(self) -> list[Call]:
        """Answered and open calls."""
        return self.calls + list(self._open.values())


class Unexplained(AssertionError):
    """No order of the calls explains their answers."""

    def __init__(self, key: str, calls: list[Call]) -> None:
        lines = [f"no order explains the history of {key}:"]
        for call in sorted(calls, key=lambda call: call.invoked):
            returned = "…" if call.is_open else str(call.returned)
            arguments = ", ".join(map(repr, call.arguments))
            lines.append(
                f"  {call.invoked:>9} {returned:>9}  {call.name}({arguments}) -> {call.answer!r}"
            )
        super().__init__("\n".join(lines))
        self.key = key


def check(calls: Iterable[Call], model: Model, start: State) -> None:
    """Raise Unexplained for the first key whose calls have no order."""
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
    for key in sorted(by_key):
        if not is_linearizable(by_key[key], model, start):
            raise Unexplained(key, by_key[key])


def is_linearizable(calls: list[Call], model: Model, start: State) -> bool:
    """Whether there is an order that the model accepts."""
    calls = sorted(calls, key=lambda call: (call.invoked, call.returned))
    every_answered = sum(1 << i for i, call in enumerate(calls) if not call.is_open)
    tried: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, start)]
    while stack:
        done, state = stack.pop()
        if done & every_answered == every_answered:
            return True
        for position in candidates(calls, done):
            for following in model(state, calls[position]):
                node = (done | 1 << position, following)
                if node not in tried:
                    tried.add(node)
                    stack.append(node)
    return False


def candidates(calls: list[Call], done: int) -> list[int]:
    """The calls that can take effect next: those invoked before any other has to be over.

    Open calls that say the same are interchangeable, so only the first of them is tried.
    """
    found = []
    seen: set[tuple[str, tuple[Any, ...]]] = set()
    earliest_return = OPEN
    for position, call in enumerate(calls):
        if done >> position & 1:
            continue
        if call.invoked > earliest_return:
            break
        if call.is_open:
            same = (call.name, call.arguments)
            if same in seen:
                continue
            seen.add(same)
        found.append(position)
        earliest_return = min(earliest_return, call.returned)
    return [position for position in found if calls[position].invoked <= earliest_return]


# Registers: what the small state machine of core runs holds.


def register(state: Any, call: Call) -> Iterable[Any]:
    """write(value) -> True, read() -> the value of the last write."""
    if call.name == "write":
        return (call.arguments[0],)
    assert call.name == "read"
    return (state,) if call.is_open or call.answer == state else ()


# Jobs. The automaton knows what a client can see of a job's life.

ABSENT: Final = "absent"
PENDING: Final = "pending"  # scheduled and retrying jobs, too: when they are due is not judged
ACTIVE: Final = "active"
COMPLETED: Final = "completed"
DEAD: Final = "dead"
CANCELLED: Final = "cancelled"

UNKNOWN_TOKEN: Final = "?"  # of a lease whose fetch was never answered


class JobState(NamedTuple):
    """A job as its automaton has it."""

    state: str = ABSENT
    attempt: int = 0
    token: str = ""
    """Of the live lease, or of the one that completed the job."""
    cancelling: bool = False
    phantom: bool = False
    """The lease was given out and nobody used it so far; it may go back unspent."""


def job(state: JobState, call: Call) -> Iterable[JobState]:
    """What may follow from a state of a job when a call on it takes effect.

    A lease may end before any call: by then its time may have been over. So each call is tried on
    the state as it is, and on those that the end of the lease leaves.

        enqueue() -> True; False when a job of that id or key was there before
        fetch() -> (token, attempt)
        ack(token), fail(token, final), release(token), beat(token)  -> True; False when refused
        cancel(force) -> "cancelled", "cancelling", or False
        see() -> (state, attempt), read through the leader

    The answer False stands for "the lease is lost" or "wrong state": a statement about the job,
    which must have been true.
    """
    rule = _RULES[call.name]
    for before in (state, *lease_ends(state)):
        yield from rule(before, call)


def lease_ends(state: JobState) -> Iterable[JobState]:
    """What the end of a lease by time leaves: another attempt or none, or an unspent one."""
    if state.state != ACTIVE:
        return
    if state.cancelling:
        yield JobState(CANCELLED, state.attempt)
        return
    yield JobState(PENDING, state.attempt)
    yield JobState(DEAD, state.attempt)
    if state.phantom:
        yield JobState(PENDING, state.attempt - 1)


def _enqueue(state: JobState, call: Call) -> Iterable[JobState]:
    if state.state == ABSENT:
        if call.is_open or call.answer is True:
            yield JobState(PENDING)
    elif call.is_open or call.answer is False:
        yield state


def _fetch(state: JobState, call: Call) -> Iterable[JobState]:
    if state.state != PENDING:
        return
    attempt = state.attempt + 1
    if call.is_open:
        yield JobState(ACTIVE, attempt, UNKNOWN_TOKEN, phantom=True)
    elif call.answer[1] == attempt:
        yield JobState(ACTIVE, attempt, call.answer[0], phantom=True)


def _holds(state: JobState, token: str) -> bool:
    return state.state == ACTIVE and state.token == token


def _ack(state: JobState, call: Call) -> Iterable[JobState]:
    token = call.arguments[0]
    if _holds(state, token):
        if call.answer is not False:
            yield JobState(COMPLETED, state.attempt, token)
    elif state.state == COMPLETED and state.token == token:
        if call.answer is not False:  # the same ack again
            yield state
    elif call.is_open or call.answer is False:
        yield state


def _fail(state: JobState, call: Call) -> Iterable[JobState]:
    if _holds(state, call.arguments[0]):
        if call.answer is not False:
            if state.cancelling:
                yield JobState(CANCELLED, state.attempt)
                return
            yield JobState(DEAD, state.attempt)
            if not call.arguments[1]:
                yield JobState(PENDING, state.attempt)
    elif call.is_open or call.answer is False:
        yield state


def _release(state: JobState, call: Call) -> Iterable[JobState]:
    if _holds(state, call.arguments[0]):
        if call.answer is not False:
            after = CANCELLED if state.cancelling else PENDING
            yield JobState(after, state.attempt - (after == PENDING))
    elif call.is_open or call.answer is False:
        yield state


def _beat(state: JobState, call: Call) -> Iterable[JobState]:
    if _holds(state, call.arguments[0]):
        if call.answer is not False:
            yield state._replace(phantom=False)
    elif call.is_open or call.answer is False:
        yield state


def _cancel(state: JobState, call: Call) -> Iterable[JobState]:
    force = call.arguments[0]
    if state.state == PENDING or (state.state == ACTIVE and force):
        if call.is_open or call.answer == "cancelled":
            yield JobState(CANCELLED, state.attempt)
    elif state.state == ACTIVE:
        if call.is_open or call.answer == "cancelling":
            yield state._replace(cancelling=True)
    elif call.is_open or call.answer is False:
        yield state


def _see(state: JobState, call: Call) -> Iterable[JobState]:
    if call.is_open or call.answer == (state.state, state.attempt):
        yield state


_RULES: Final[dict[str, Callable[[JobState, Call], Iterable[JobState]]]] = {
    "enqueue": _enqueue,
    "fetch": _fetch,
    "ack": _ack,
    "fail": _fail,
    "release": _release,
    "beat": _beat,
    "cancel": _cancel,
    "see": _see,
}


def with_open_fetches(calls: list[Call]) -> list[Call]:
    """A fetch without an answer may have leased any job, so every job's history gets it."""
    keys = sorted({call.key for call in calls if call.key})
    lost = [call for call in calls if call.name == "fetch" and call.is_open]
    rest = [call for call in calls if not (call.name == "fetch" and call.is_open)]
    return rest + [call._replace(key=key) for call in lost for key in keys]
