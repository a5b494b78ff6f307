cimport cython

from corvo.fsm.state.state cimport Core
from corvo.fsm.state.store cimport Store
from corvo.storage.records.meta cimport Meta

cdef list _BY_NUMBER

cdef object _function(Py_ssize_t number, long long index)


cdef class Machine:
    cdef readonly Core _core
    cdef readonly Store _store
    cdef readonly Meta _meta
    cdef list _aside

    @cython.locals(meta=Meta, results=list)
    cpdef list apply(self, long long index, long long term, bytes data)

    @cython.locals(
        core=Core, frame=list, functions=list, position=cython.Py_ssize_t,
        number=cython.Py_ssize_t
    )
    cdef _apply_frame(self, long long index, long long term, bytes data, list results)
