cimport cython


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Event:
    cdef public long long seq
    cdef public int type
    cdef public str job_id, queue
    cdef public long long at_ns
    cdef public bytes data
    cdef public long long previous
