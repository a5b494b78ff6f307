cdef class MonotonicClock:
    cdef object _source
    cdef bint _native

    cpdef long long monotonic_ns(self) except? -1
    cpdef long long elapsed_ns(self) except? -1
