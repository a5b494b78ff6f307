cimport cython

from corvo._fast.index.ready cimport ReadyIndex
from corvo.fsm.state.groups cimport Groups, is_member
from corvo.model cimport Job, Queue

cdef int SEQ_BITS


@cython.final
cdef class QueueIndex:
    cdef public Queue queue
    cdef public unsigned long long first_position
    cdef public ReadyIndex ready
    cdef public long long blocked
    cdef public Groups groups
    cdef public dict active
    cdef public object window
    cdef public bint woken
    cdef public unsigned long long aging_seq
    cdef public long long aging_ns

    cpdef bint full(self, long long stamp_ns) except -1

    @cython.locals(ungrouped=cython.ulonglong)
    cpdef unsigned long long first(self) except? 0

    @cython.locals(seq=cython.ulonglong, other=cython.ulonglong)
    cpdef unsigned long long first_normal(self) except? 0

    cpdef list first_ready(self, int priority, Py_ssize_t limit)

    @cython.locals(queue=Queue, count=cython.longlong)
    cpdef Py_ssize_t fetchable(
        self, long long now_ns, long long arriving=*, long long leaving=*
    ) except -1
