cimport cython

cdef list _PAIRS
cdef str _DIGITS


@cython.locals(text=str, pairs=str)
cpdef str build_token(unsigned long long fencing, unsigned long long seed)
