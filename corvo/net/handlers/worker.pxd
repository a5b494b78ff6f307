cimport cython

from corvo._fast.replies cimport Request
from corvo.service cimport Service
from corvo.waiting cimport Wait


@cython.final
cdef class WorkerVerbs:
    cdef Service _service
    cdef dict _asked
    cdef object _texts

    @cython.locals(asked=tuple)
    cpdef fetch(self, Request request)

    @cython.locals(wait=Wait)
    cdef _wait(self, Request request, tuple asked, bint batch, answer)
    cpdef ack(self, Request request)
