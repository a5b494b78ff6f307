cdef int _WIDTH
cdef bytes _FLAT

cpdef int next_state(int state, int trigger) except -2
