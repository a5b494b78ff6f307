cimport cython

from corvo._fast.ready cimport ReadyIndex
from corvo.model cimport Queue


@cython.final
cdef class Lane:
    cdef public Queue queue
    cdef public unsigned long long first_place
    cdef public ReadyIndex ready
    cdef public dict active
    cdef public bint woken

    cpdef bint full(self) except -1
    cpdef fetchable(self, int arriving=*, int leaving=*)
