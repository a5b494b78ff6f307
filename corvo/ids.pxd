cimport cython

cdef int _LOW_BITS
cdef long long _LOW_END
cdef tuple _PAIRS


@cython.final
cdef class JobIds:
    cdef object _random_bytes, _high
    cdef long long _millisecond, _low
    cdef str _text

    @cython.locals(millisecond=cython.longlong)
    cpdef str new(self, long long stamp_ns)
