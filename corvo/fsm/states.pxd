cpdef int next_state(int state, int trigger) except -2
