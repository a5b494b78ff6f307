cimport cython

from corvo._fast.codec.fast_json cimport fast_ack
from corvo._fast.http.exchange cimport Request
from corvo.model cimport Fetched
from corvo.net.api.responses cimport fetched_document
from corvo.ops cimport Op
from corvo.engine.service cimport Service
from corvo.engine.fetches cimport Wait

cdef Op _ACK


cdef long long _began_ns(Request request) except? -1


@cython.final
cdef class WorkerVerbs:
    cdef Service _service
    cdef dict _asked
    cdef object _job_output

    @cython.locals(asked=tuple)
    cpdef fetch(self, Request request)

    @cython.locals(wait=Wait)
    cdef _wait(self, Request request, tuple asked, bint batch, answer)
    cpdef ack(self, Request request)


@cython.locals(request=Request)
cpdef on_fetched(Wait wait, jobs)
cpdef on_acked(Request request, result)
