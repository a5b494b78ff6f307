cimport cython

from corvo._fast.codec.fast_json cimport FastEnqueue
from corvo._fast.http.exchange cimport Request, join
from corvo.model cimport Enqueued
from corvo.engine.service cimport Service

cdef list _ENQUEUED_END


@cython.final
cdef class Producer:
    cdef Service _service
    cdef FastEnqueue _fast
    cdef tuple _results
    cdef object _options

    cpdef enqueue(self, Request request)


@cython.locals(enqueued=Enqueued)
cpdef on_enqueued(Request request, result)
