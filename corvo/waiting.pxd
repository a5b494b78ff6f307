cimport cython

cdef long long _BUCKET_NS


@cython.final
cdef class Wait:
    cdef public list queues
    cdef public str worker_id
    cdef public bytes payload
    cdef public bint batch
    cdef public long long deadline_ns
    cdef public object request, answer
    cdef public int state
    cdef public list jobs
    cdef public bint out_of_turn, listed


@cython.final
cdef class WaitingFetches:
    cdef dict _queues, _deadlines
    cdef list _buckets
    cdef public Py_ssize_t count

    cpdef park(self, Wait wait, bint front=*)
    cpdef remove(self, Wait wait)
    cpdef Py_ssize_t waiting(self, str queue) except -1

    @cython.locals(wait=Wait)
    cpdef Wait take(self, str queue)
    cpdef list_deadline(self, Wait wait)
    cpdef next_deadline_ns(self)
