cimport cython

from corvo._fast.http.exchange cimport Request

cdef Py_ssize_t _HEADS_MAX
cdef Py_ssize_t _SIZE_MAX
cdef Py_ssize_t _SEEN


@cython.final
cdef class CachedHead:
    cdef readonly bytes head
    cdef str method
    cdef bytes path, query, host, content_type, content_length, namespace, min_index
    cdef bytes client_name, client_version

    cpdef fill(self, Request request)


@cython.final
cdef class HeadCache:
    cdef list _cached, _seen
    cdef Py_ssize_t _oldest

    cpdef CachedHead find(self, bytes data, Py_ssize_t pos)
    cpdef learn(self, Request request, bytes head)


cdef bint _is_special(Request request) except -1
