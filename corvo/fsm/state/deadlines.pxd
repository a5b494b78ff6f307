cimport cython

from corvo._fast.index.ready cimport DueHeap


@cython.final
cdef class DueTimes:
    cdef DueHeap _heap
    cdef readonly set _left

    cpdef push(self, long long due_ns, unsigned long long queue_position)
    cpdef leave(self, unsigned long long queue_position)

    @cython.locals(heap=DueHeap, left=cython.ulonglong)
    cpdef Py_ssize_t first_due(self) except -1
    cpdef unsigned long long first_position(self) except? 0
    cpdef pop(self)
    cpdef compact(self)
    cdef _drop_left(self)
