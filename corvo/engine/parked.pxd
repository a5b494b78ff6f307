cimport cython

cdef long long _BUCKET_NS


cdef class Parked:
    cdef public long long deadline_ns
    cdef public bint listed


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
cdef class Deadlines:
    cdef dict _parked
    cdef list _buckets

    @cython.locals(bucket=cython.longlong)
    cpdef add(self, Parked parked)
    cpdef remove(self, Parked parked)
    cpdef next_ns(self)
