cimport cython

from corvo.fsm.state.state cimport State
from corvo.fsm.state.write_buffer cimport WriteBuffer
from corvo.storage.records.meta cimport Meta

cdef list _BY_NUMBER

cdef object _function(Py_ssize_t number, long long index)


cdef class Machine:
    cdef readonly State _state
    cdef readonly WriteBuffer _buffer
    cdef readonly Meta _meta
    cdef list _in_grace
    cdef public long long skipped_index
    cdef readonly long long refused_ops

    @cython.locals(meta=Meta, results=list)
    cpdef list apply(self, long long index, long long term, bytes data)

    @cython.locals(
        state=State, frame=list, functions=list, op_position=cython.Py_ssize_t,
        number=cython.Py_ssize_t
    )
    cdef _apply_frame(self, long long index, long long term, bytes data, list results)
