cimport cython

from corvo._fast.codec cimport keys
from corvo.storage.records.meta cimport Meta


@cython.final
cdef class EventLog:
    cdef object _state_store
    cdef Meta _meta
    cdef list _blocks, _deletes
    cdef public long long size

    cpdef Py_ssize_t documents(self) except -1
    cpdef add(self, long long first_seq, bytes block)
