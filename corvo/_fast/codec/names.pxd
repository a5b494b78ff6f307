cdef Py_ssize_t NAME_SIZE_MAX

cpdef bint is_name(const char *utf8, Py_ssize_t size) noexcept
cpdef str check_name(str text, Py_ssize_t number, bint optional)
