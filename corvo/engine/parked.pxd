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
