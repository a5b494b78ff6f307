cdef bytes _DIGITS
cdef Py_ssize_t _SIZE_MAX, _SEED_DIGITS

cpdef str build_token(unsigned long long fencing, unsigned long long seed)
