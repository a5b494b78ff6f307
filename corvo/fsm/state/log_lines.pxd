cimport cython


@cython.final
cdef class LogRows:
    cdef object _state_store
    cdef dict _logs, _blocks
    cdef list _deletes
    cdef public long long size

    cpdef Py_ssize_t documents(self) except -1
