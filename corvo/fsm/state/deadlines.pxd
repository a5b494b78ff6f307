cimport cython

from corvo._fast.index.ready cimport DueHeap


@cython.final
cdef class DueTimes:
    cdef DueHeap _heap
    cdef readonly set _left

    cpdef push(self, long long due_ns, unsigned long long spot)
    cpdef leave(self, unsigned long long spot)

    @cython.locals(heap=DueHeap)
    cpdef Py_ssize_t first_due(self) except -1
    cpdef unsigned long long first_spot(self) except? 0
    cpdef pop(self)
    cpdef compact(self)
    cdef _drop_left(self)
