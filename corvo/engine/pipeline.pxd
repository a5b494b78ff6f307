cimport cython

from corvo._fast.batcher cimport Batcher
from corvo.platform.clock cimport Clock
from corvo.engine.flusher cimport StoreFlusher
from corvo.ops cimport Op
from corvo.engine.feed cimport Feed
from corvo.engine.fetches cimport Fetches
from corvo.engine.parked cimport Wait

cdef Op _FETCH, _FETCH_BATCH
cdef long long _PENDING_SIZE_MAX, _WRITE_BUFFER_SIZE_MAX, _GATHER_NS, _ENTRY_SEAL_SIZE


@cython.final
cdef class Pipeline:
    cdef object _loop, _log, _machine
    cdef Clock _clock
    cdef long long _pending_max
    cdef Batcher _batcher
    cdef long long _batch_began_ns
    cdef Py_ssize_t _leaving
    cdef dict _arriving
    cdef str _arriving_queue
    cdef Py_ssize_t _arriving_count
    cdef bint _seal_scheduled
    cdef Py_ssize_t _gathered
    cdef long long _sealed_ns
    cdef dict _in_flight
    cdef long long _in_flight_ops, _in_flight_size, _write_buffer_size
    cdef public Feed feed
    cdef public Fetches fetches
    cdef object _fetch_completed
    cdef public object results
    cdef public StoreFlusher flusher
    cdef public object metrics
    cdef object _ticker
    cdef public bint open
    cdef readonly bint draining
    cdef object _refusal
    cdef public object on_entry
    cdef public list on_applied
    cdef public object on_fatal, on_lost

    cpdef submit(self, Op op, bytes payload, completion, int number=*)
    cpdef add(self, Op op, bytes payload, completion, int number=*)
    cpdef bint begins_entry(self) except -1
    cpdef expect(self, str queue, Py_ssize_t count)
    cdef _list_arriving(self)

    @cython.locals(pending=cython.longlong, pending_size=cython.longlong)
    cdef _refuse_if_short(self, Py_ssize_t size)
    cpdef fetch(self, Wait wait)
    cpdef request_seal(self)
    cdef _schedule_seal(self)
    cpdef _seal_late(self)

    @cython.locals(count=cython.Py_ssize_t)
    cpdef _gather(self)
    cdef Py_ssize_t _gathering(self) except -1

    @cython.locals(batcher=Batcher, now_ns=cython.longlong)
    cpdef _seal(self)

    @cython.locals(wait=Wait, op=Op)
    cdef _add_fetches(self)
    cdef _lose(self, list completions)
    cdef tuple _take_flight(self, long long index)

    @cython.locals(i=cython.Py_ssize_t)
    cdef _resolve(self, list completions, list results)
    cpdef after_turn(self)
