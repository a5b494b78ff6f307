cimport cython


@cython.final
cdef class Histogram:
    cdef readonly tuple bounds_ns
    cdef readonly unsigned long long count, sum_ns
    cdef int _size
    cdef unsigned long long[16] _bounds
    cdef unsigned long long[17] _counts

    cpdef observe(self, unsigned long long length_ns)


@cython.final
cdef class RouteMetrics:
    cdef readonly unsigned long long requests, errors
    cdef readonly Histogram duration

    cpdef answered(self, int status, long long length_ns)


@cython.final
cdef class TurnMetrics:
    cdef object _call_soon, _monotonic_ns
    cdef bint _running
    cdef long long _began_ns
    cdef readonly Histogram duration

    cpdef begin(self)
    cpdef _end(self)
