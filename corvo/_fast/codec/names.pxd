cdef Py_ssize_t NAME_SIZE_MAX

cpdef str check_name(str text, Py_ssize_t number, bint optional)
