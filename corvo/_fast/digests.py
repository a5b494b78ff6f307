"""A table from 64-bit digests to numbers, 16 bytes a slot: a dict of as many would take ten times
as much.

Open addressing, linear probing. A slot is free when its number is 0. Removing closes the gap by
moving back what was pushed on by it, so there are no tombstones and nothing to clean up. The table
doubles when it is more than half full.
"""

from array import array

import cython

if cython.compiled:
    from cython.cimports.cpython.array import array as c_array
else:
    c_array = array

SLOTS_MIN = cython.declare(cython.Py_ssize_t, 64)


@cython.final
@cython.cclass
class DigestTable:
    """Digests are expected to be random already; numbers are positive."""

    _digests: c_array
    _numbers: c_array
    _mask: cython.ulonglong
    _count: cython.Py_ssize_t

    def __init__(self):
        self._digests = array("Q", bytes(8 * SLOTS_MIN))
        self._numbers = array("Q", bytes(8 * SLOTS_MIN))
        self._mask = SLOTS_MIN - 1
        self._count = 0

    def __len__(self):
        return self._count

    def get(self, digest: cython.ulonglong) -> cython.ulonglong:
        """The number of a digest; 0 when there is none."""
        return self._get_number(self._find(digest))

    def put(self, digest: cython.ulonglong, number: cython.ulonglong) -> cython.void:
        """Set the number of a digest."""
        assert number > 0
        at: cython.ulonglong = self._find(digest)
        if self._get_number(at) == 0:
            if 2 * (self._count + 1) > cython.cast(cython.Py_ssize_t, self._mask):
                self._grow()
                at = self._find(digest)
            self._count += 1
        self._set(at, digest, number)

    def remove(self, digest: cython.ulonglong, number: cython.ulonglong) -> cython.void:
        """Forget a digest, if it has this number."""
        at: cython.ulonglong = self._find(digest)
        if self._get_number(at) != number:
            return
        self._count -= 1
        gap: cython.ulonglong = at
        while True:
            at = (at + 1) & self._mask
            if self._get_number(at) == 0:
                break
            home: cython.ulonglong = self._get_digest(at) & self._mask
            # What stands at `at` may go back to the gap unless its home lies behind the gap.
            if ((at - home) & self._mask) >= ((at - gap) & self._mask):
                self._set(gap, self._get_digest(at), self._get_number(at))
                gap = at
        self._set(gap, 0, 0)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _get_digest(self, at: cython.ulonglong) -> cython.ulonglong:
        if cython.compiled:
            return self._digests.data.as_ulonglongs[at]
        return self._digests[at]

    @cython.cfunc
    @cython.exceptval(check=False)
    def _get_number(self, at: cython.ulonglong) -> cython.ulonglong:
        if cython.compiled:
            return self._numbers.data.as_ulonglongs[at]
        return self._numbers[at]

    @cython.cfunc
    @cython.exceptval(check=False)
    def _set(
        self, at: cython.ulonglong, digest: cython.ulonglong, number: cython.ulonglong
    ) -> cython.void:
        if cython.compiled:
            self._digests.data.as_ulonglongs[at] = digest
            self._numbers.data.as_ulonglongs[at] = number
        else:
            self._digests[at] = digest
            self._numbers[at] = number

    @cython.cfunc
    @cython.exceptval(check=False)
    def _find(self, digest: cython.ulonglong) -> cython.ulonglong:
        """The slot of a digest, or the free one where it would go."""
        at: cython.ulonglong = digest & self._mask
        while self._get_number(at) != 0 and self._get_digest(at) != digest:
            at = (at + 1) & self._mask
        return at

    @cython.cfunc
    def _grow(self) -> cython.void:
        digests: c_array = self._digests
        numbers: c_array = self._numbers
        slots: cython.Py_ssize_t = 2 * len(numbers)
        self._digests = array("Q", bytes(8 * slots))
        self._numbers = array("Q", bytes(8 * slots))
        self._mask = slots - 1
        i: cython.Py_ssize_t
        for i in range(len(numbers)):
            number: cython.ulonglong = numbers[i]
            if number != 0:
                digest: cython.ulonglong = digests[i]
                self._set(self._find(digest), digest, number)
