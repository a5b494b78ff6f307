cdef class TokenBucket:
    cdef long long _full, _rate, _level, _filled_ns

    cpdef bint take(self, long long now_ns) except -1
    cpdef add(self, long long tokens)
