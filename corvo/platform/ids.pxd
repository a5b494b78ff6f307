cimport cython

cdef int _LOW_BITS
cdef long long _LOW_END, _MS_NS
cdef tuple _PAIRS


@cython.locals(value=cython.ulonglong, pairs=list)
cdef str _base32(value, int length)


@cython.final
cdef class JobIds:
    cdef object _random_bytes, _high
    cdef long long _millisecond, _low
    cdef str _text

    @cython.locals(millisecond=cython.longlong)
    cpdef str new(self, long long stamp_ns)
