cimport cython

from corvo._fast.codec.fast_json cimport FastEnqueue
from corvo._fast.http.exchange cimport Request, join
from corvo.model cimport Enqueued
from corvo.engine.caller cimport Caller
from corvo.engine.commands.enqueue cimport EnqueueCommands
from corvo.engine.service cimport Service

cdef list _ENQUEUED_END


@cython.final
cdef class Producer:
    cdef Service _service
    cdef EnqueueCommands _commands
    cdef FastEnqueue _fast

    @cython.locals(caller=Caller)
    cpdef enqueue(self, Request request)


@cython.locals(enqueued=Enqueued)
cpdef on_enqueued(Request request, result)
