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

    memory: c_array
    digest: cython.p_ulonglong
    number: cython.p_ulonglong
    mask: cython.ulonglong
    size: cython.Py_ssize_t

    def __init__(self) -> None:
        self.size = 0
        self._allocate(SLOTS_MIN)

    def __len__(self) -> int:
        return self.size

    def get(self, digest: cython.ulonglong) -> cython.ulonglong:
        """The number of a digest; 0 when there is none."""
        return self.number[self._find(digest)]

    def put(self, digest: cython.ulonglong, number: cython.ulonglong) -> cython.void:
        """Set the number of a digest."""
        assert number > 0
        at: cython.ulonglong = self._find(digest)
        if self.number[at] == 0:
            if 2 * cython.cast(cython.ulonglong, self.size) >= self.mask:
                self._grow()
                at = self._find(digest)
            self.size += 1
        self.digest[at] = digest
        self.number[at] = number

    def remove(self, digest: cython.ulonglong, number: cython.ulonglong) -> cython.void:
        """Forget a digest, if it has this number."""
        at: cython.ulonglong = self._find(digest)
        if self.number[at] != number:
            return
        self.size -= 1
        gap: cython.ulonglong = at
        home: cython.ulonglong
        while True:
            at = (at + 1) & self.mask
            if self.number[at] == 0:
                break
            # What stands here may go back to the gap unless its home lies behind the gap.
            home = self.digest[at] & self.mask
            if ((at - home) & self.mask) >= ((at - gap) & self.mask):
                self.digest[gap] = self.digest[at]
                self.number[gap] = self.number[at]
                gap = at
        self.number[gap] = 0

    @cython.cfunc
    def _find(self, digest: cython.ulonglong) -> cython.ulonglong:
        """The slot of a digest, or the free one where it would go."""
        at: cython.ulonglong = digest & self.mask
        while self.number[at] != 0 and self.digest[at] != digest:
            at = (at + 1) & self.mask
        return at

    @cython.cfunc
    def _allocate(self, slots: cython.Py_ssize_t) -> cython.void:
        """Empty memory for so many slots: all digests, then all numbers."""
        self.memory = array("Q", bytes(16 * slots))
        self.mask = slots - 1
        if cython.compiled:
            self.digest = self.memory.data.as_ulonglongs
            self.number = self.digest + slots
        else:
            whole = memoryview(self.memory)
            self.digest = whole[:slots]
            self.number = whole[slots:]

    @cython.cfunc
    def _grow(self) -> cython.void:
        slots: cython.Py_ssize_t = self.mask + 1
        memory: c_array = self.memory
        i: cython.Py_ssize_t
        at: cython.ulonglong
        self._allocate(2 * slots)
        for i in range(slots):
            if memory[slots + i] != 0:
                at = self._find(memory[i])
                self.digest[at] = memory[i]
                self.number[at] = memory[slots + i]
