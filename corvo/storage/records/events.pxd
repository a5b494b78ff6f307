cimport cython

from corvo._fast.codec.fields cimport Writer


@cython.final
cdef class EventBlock:
    cdef public long long first_seq
    cdef public Py_ssize_t count
    cdef long long _at_ns
    cdef dict _queues
    cdef str _queue, _job_id
    cdef Py_ssize_t _position
    cdef Writer _whole, _types, _positions, _ids, _distances, _data

    cpdef begin(self, long long first_seq, long long at_ns)
    cpdef add(self, int type, str job_id, str queue, long long previous, bytes data)

    @cython.locals(w=Writer, count=cython.Py_ssize_t, name=str)
    cpdef bytes done(self)
