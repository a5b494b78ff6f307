"""The set of a bulk operation on all jobs: in each queue the jobs with a seq below its *cut*.

There can be very many queues, and each step rewrites the row of its operation. So the cuts have
rows of their own, which are chunks with large numbers. The operation has the number of these rows
as the cut of queue 0, which does not exist.
"""

from bisect import bisect_left
from typing import Final

from corvo.fsm.state.state import State
from corvo.model import BulkOperation
from corvo.storage.records import bulk as bulk_records

_FIRST: Final = 1 << 31  # number of the first chunk with cuts
_QUEUES_PER_ROW: Final = 4_096


def fix(state: State, operation: BulkOperation) -> None:
    """Fix the set of an operation: the jobs that exist now."""
    numbers, seqs = state.numbers().copy(), state.next_seqs()
    for at in range(0, len(numbers), _QUEUES_PER_ROW):
        end = at + _QUEUES_PER_ROW
        row = bulk_records.encode_cuts(numbers[at:end], seqs[at:end])
        state.buffer.set_chunk(operation, _FIRST + at // _QUEUES_PER_ROW, row)
    operation.cut_numbers = [0]
    operation.cut_seqs = [-(-len(numbers) // _QUEUES_PER_ROW)]
    operation.cuts = (numbers, seqs)


def of_queue(state: State, operation: BulkOperation, queue_number: int) -> int:
    """Return the cut of a queue for an operation, 0 if it has none."""
    if operation.cuts is None:
        operation.cuts = _read(state, operation)
    numbers, seqs = operation.cuts
    at = bisect_left(numbers, queue_number)
    return seqs[at] if at < len(numbers) and numbers[at] == queue_number else 0


def _read(state: State, operation: BulkOperation) -> tuple[list[int], list[int]]:
    if operation.cut_numbers != [0]:  # an operation of an older version
        return operation.cut_numbers, operation.cut_seqs
    numbers: list[int] = []
    seqs: list[int] = []
    for number in chunks(operation):
        row = state.buffer.chunk(operation, number)
        more_numbers, more_seqs = bulk_records.decode_cuts(row)
        numbers += more_numbers
        seqs += more_seqs
    return numbers, seqs


def drop(state: State, operation: BulkOperation) -> None:
    """Delete the cuts of an operation that has finished."""
    for number in chunks(operation):
        state.buffer.set_chunk(operation, number, b"")
    if operation.cut_numbers == [0]:
        operation.cut_seqs = [0]
    operation.cuts = None


def chunks(operation: BulkOperation) -> range:
    """Return the numbers of the chunks that hold the cuts of an operation."""
    count = operation.cut_seqs[0] if operation.cut_numbers == [0] else 0
    return range(_FIRST, _FIRST + count)
