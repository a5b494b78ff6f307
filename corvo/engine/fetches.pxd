cimport cython

cdef long long _BUCKET_NS


cdef class Parked:
    cdef public long long deadline_ns
    cdef public bint listed


@cython.final
cdef class Deadlines:
    cdef dict _parked
    cdef list _buckets

    @cython.locals(bucket=cython.longlong)
    cpdef add(self, Parked parked)
    cpdef remove(self, Parked parked)
    cpdef next_ns(self)


@cython.final
cdef class Wait(Parked):
    cdef public list queues
    cdef public str worker_id
    cdef public bytes payload
    cdef public bint batch
    cdef public object request, answer
    cdef public int state
    cdef public list jobs
    cdef public bint out_of_turn


@cython.final
cdef class WaitingFetches:
    cdef dict _queues
    cdef Deadlines _deadlines
    cdef public Py_ssize_t count

    cpdef park(self, Wait wait, bint front=*)
    cpdef remove(self, Wait wait)
    cpdef Py_ssize_t waiting(self, str queue) except -1

    @cython.locals(wait=Wait)
    cpdef Wait take(self, str queue)
    cpdef list_deadline(self, Wait wait)
    cpdef next_deadline_ns(self)
