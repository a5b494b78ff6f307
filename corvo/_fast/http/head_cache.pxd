cimport cython

from corvo._fast.http.exchange cimport Request

cdef Py_ssize_t _KNOWN_MAX
cdef Py_ssize_t _SIZE_MAX
cdef Py_ssize_t _SEEN


@cython.final
cdef class Known:
    cdef readonly bytes head
    cdef str method
    cdef bytes path, query, host, content_type, content_length, namespace, min_index
    cdef bytes client_name, client_version

    cpdef fill(self, Request request)


@cython.final
cdef class KnownHeads:
    cdef list _known, _seen
    cdef Py_ssize_t _oldest

    cpdef Known find(self, bytes data, Py_ssize_t pos)
    cpdef learn(self, Request request, bytes head)


cdef bint _is_special(Request request) except -1
