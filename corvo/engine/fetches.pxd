cimport cython

from corvo.engine.parked cimport Deadlines, Wait
from corvo.platform.clock cimport Clock

cdef int PARKED, IN_FLIGHT, DONE


@cython.final
cdef class WaitingFetches:
    cdef dict _queues
    cdef Deadlines _deadlines
    cdef public Py_ssize_t count

    cpdef park(self, Wait wait, bint front=*)
    cpdef remove(self, Wait wait)
    cpdef Py_ssize_t in_queue(self, str queue) except -1

    @cython.locals(wait=Wait)
    cpdef Wait take(self, str queue)
    cpdef list_deadline(self, Wait wait)
    cpdef next_deadline_ns(self)


@cython.final
cdef class Fetches:
    cdef object _loop, _machine, _proposer
    cdef Clock _clock
    cdef readonly WaitingFetches waiting
    cdef readonly dict to_check
    cdef readonly list new
    cdef list _unserved
    cdef object _deadline_timer, _opening_timer, _reopenings
    cdef long long _deadline_armed_ns, _opening_armed_ns
    cdef readonly object completed

    cpdef park(self, Wait wait)

    @cython.locals(
        wait=Wait, waiters=cython.Py_ssize_t, count=cython.Py_ssize_t, wanted=cython.Py_ssize_t
    )
    cpdef list take(self, dict arriving, Py_ssize_t leaving)

    @cython.locals(wait=Wait, answered=cython.bint)
    cdef _settle_new(self, list taken)
    cpdef after_apply(self, list woken)
    cdef _park_again(self, Wait wait, bint front)
    cdef _may_wait_on(self, Wait wait)
    cdef _finish(self, Wait wait, jobs)
    cdef _answer(self, Wait wait, answer)
    cdef _give_back(self, jobs)
    cdef _arm_deadline(self)
