cimport cython


@cython.final
cdef class RowOverlay:
    cdef object _state_store
    cdef dict _rows
    cdef public long long size
    cdef dict _old_grants, _old_groups
    cdef list _old_objects
    cdef public bint old

    cpdef bytes get(self, bytes key)
    cpdef put(self, bytes key, bytes row)


@cython.final
cdef class Links:
    cdef object _state_store
    cdef bytes _family
    cdef dict _changes
    cdef Py_ssize_t _count
