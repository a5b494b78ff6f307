"""The batcher: ops that wait for the next log entry.

An entry runs its ops by order class (lease ops, then everything else, then fetches; `corvo.ops`),
and inside a class in the order of arrival. What does not fit is left for the entry after it: an
entry is always the front of that order, so no fetch overtakes the ack that was to free its slot.
"""

from typing import Any

import cython

from corvo._fast.codec.layouts import encode_fields, encode_frame

CLASSES = 3
STAMP = 0
STAMP_LAYOUT = "qq"


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _op_size(number: cython.ulonglong, payload_size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """What an op adds to its frame: number, length, payload."""
    size: cython.Py_ssize_t = payload_size + 2
    rest: cython.ulonglong = payload_size
    while number >= 0x80:
        number >>= 7
        size += 1
    while rest >= 0x80:
        rest >>= 7
        size += 1
    return size


class Batcher:
    """Collects ops and seals them into frames of at most `max_ops` ops and `max_size` bytes.

    `count` and `size` say what is waiting; the size is that of the ops in their frame.
    """

    def __init__(self, max_ops: cython.Py_ssize_t, max_size: cython.Py_ssize_t) -> None:
        assert max_ops > 0 and max_size > 0
        self.count = 0
        self.size = 0
        self._max_ops = max_ops
        self._max_size = max_size
        self._ops: list[Any] = [[], [], []]  # (number, payload) by class
        self._completions: list[Any] = [[], [], []]  # who waits for the result, beside them

    def add(
        self,
        order_class: cython.Py_ssize_t,
        number: cython.ulonglong,
        payload: bytes,
        completion: Any,
    ) -> None:
        """Take an op; its slot comes back from the `seal` that puts it into an entry."""
        assert 0 <= order_class < CLASSES
        cython.cast(list, self._ops[order_class]).append((number, payload))
        cython.cast(list, self._completions[order_class]).append(completion)
        self.count += 1
        self.size += _op_size(number, len(payload))

    def seal(self, stamp_ns: cython.longlong, seed: cython.longlong) -> tuple[bytes, list[Any]]:
        """The next entry: (frame, slots). The frame opens with the Stamp, which has no slot, and
        has one op a slot. An op larger than `max_size` gets an entry of its own."""
        ops: list[Any] = [(STAMP, encode_fields(STAMP_LAYOUT, (stamp_ns, seed)))]
        completions: list[Any] = []
        size: cython.Py_ssize_t = 0
        order: cython.Py_ssize_t
        taken: cython.Py_ssize_t
        full: cython.bint = False
        for order in range(CLASSES):
            waiting: list[Any] = self._ops[order]
            waiting_completions: list[Any] = self._completions[order]
            taken = 0
            for number, payload in waiting:
                op_size: cython.Py_ssize_t = _op_size(number, len(payload))
                count: cython.Py_ssize_t = len(completions) + taken
                full = count == self._max_ops or (count > 0 and size + op_size > self._max_size)
                if full:
                    break
                size += op_size
                taken += 1
            ops += waiting[:taken]
            completions += waiting_completions[:taken]
            del waiting[:taken]
            del waiting_completions[:taken]
            if full:
                break
        self.count -= len(completions)
        self.size -= size
        return encode_frame(ops), completions
