cimport cython

from corvo._fast.replies cimport Request
from corvo.service cimport Service
from corvo.waiting cimport Wait


@cython.final
cdef class WorkerVerbs:
    cdef Service _service

    cpdef fetch(self, Request request)
    @cython.locals(wait=Wait)
    cdef _wait(self, Request request, body, count, answer)
    cpdef ack(self, Request request)
