cimport cython

from corvo._fast.codec.fast_json cimport FastEnqueue
from corvo.platform.clock cimport Clock
from corvo.platform.ids cimport JobIds
from corvo.ops cimport Op
from corvo.engine.caller cimport Caller
from corvo.engine.pipeline cimport Pipeline
from corvo.engine.parked cimport Wait


cdef Op _ENQUEUE


cdef class Service:
    cdef public object config
    cdef public Clock clock
    cdef public object reads
    cdef Pipeline _pipeline
    cdef JobIds _ids
    cdef long long _stamp_ns, _flushed_ns
    cdef dict _operation_watches
    cdef public object mirror

    @cython.locals(pipeline=Pipeline)
    cpdef enqueue_fast(self, Caller _caller, FastEnqueue fast, completion)
    cpdef submit_encoded(self, Caller caller, Op op, bytes payload, completion)
    cdef _submit(self, Caller caller, Op op, bytes payload, completion)
    cpdef Wait fetch(
        self, Caller caller, list queues, str worker_id, bytes payload, bint batch,
        long long deadline_ns, request, answer
    )
    cpdef abandon(self, Wait wait)
