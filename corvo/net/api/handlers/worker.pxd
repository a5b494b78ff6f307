cimport cython

from corvo._fast.codec.fast_json cimport fast_ack
from corvo._fast.http.exchange cimport Request
from corvo.model cimport Fetched
from corvo.net.api.responses cimport fetched_document
from corvo.ops cimport Op
from corvo.engine.caller cimport Caller
from corvo.net.http.long_poll cimport began_ns
from corvo.engine.service cimport Service
from corvo.engine.parked cimport Wait

cdef Op _ACK


@cython.final
cdef class WorkerVerbs:
    cdef Service _service
    cdef object _commands
    cdef dict _cached

    @cython.locals(values=tuple)
    cpdef fetch(self, Request request)

    @cython.locals(wait=Wait)
    cdef _wait(self, Request request, tuple values, bint batch, answer)

    @cython.locals(service=Service, caller=Caller)
    cpdef ack(self, Request request)


@cython.locals(request=Request)
cpdef on_fetched(Wait wait, jobs)
cpdef on_acked(Request request, result)
