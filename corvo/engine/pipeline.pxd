cimport cython

from corvo._fast.batcher cimport Batcher
from corvo.platform.clock cimport Clock
from corvo.engine.flusher cimport StoreFlusher
from corvo.ops cimport Op
from corvo.engine.fetches cimport Wait, WaitingFetches

cdef Op _FETCH, _FETCH_BATCH
cdef int PARKED, IN_FLIGHT, DONE
cdef long long _PENDING_SIZE_MAX, _WRITE_BUFFER_SIZE_MAX, _GATHER_NS, _ENTRY_SEAL_SIZE


@cython.final
cdef class Pipeline:
    cdef object _loop, _log, _machine
    cdef Clock _clock
    cdef long long _pending_max
    cdef Batcher _batcher
    cdef dict _in_flight
    cdef long long _in_flight_ops, _in_flight_size, _batch_began_ns, _write_buffer_size
    cdef Py_ssize_t _leaving
    cdef bint _seal_scheduled
    cdef Py_ssize_t _gathered
    cdef long long _sealed_ns
    cdef dict _arriving, _to_check
    cdef str _arriving_queue
    cdef Py_ssize_t _arriving_count
    cdef list _new_waits, _tried_in_vain
    cdef object _deadline_timer, _opening_timer, _tick_timer, _reopenings
    cdef long long _deadline_armed_ns, _opening_armed_ns
    cdef public WaitingFetches waiting
    cdef public object results
    cdef public StoreFlusher flusher
    cdef public object metrics
    cdef public bint open
    cdef readonly bint draining
    cdef object _refusal, _fetched
    cdef public object on_entry, on_lost, watch
    cdef public list on_applied
    cdef public object on_fatal

    cpdef submit(self, Op op, bytes payload, completion, int number=*)
    cdef _add(self, Op op, bytes payload, completion, int number=*)
    cpdef bint begins_entry(self) except -1
    cpdef expect(self, str queue, Py_ssize_t count)
    cdef _list_arriving(self)

    @cython.locals(pending=cython.longlong, pending_size=cython.longlong)
    cdef _refuse_if_short(self, Py_ssize_t size)
    cpdef fetch(self, Wait wait)
    cdef _schedule_seal(self)
    cpdef _seal_late(self)

    @cython.locals(count=cython.Py_ssize_t)
    cpdef _gather(self)
    cdef Py_ssize_t _gathering(self) except -1

    @cython.locals(batcher=Batcher, now_ns=cython.longlong)
    cpdef _seal(self)

    @cython.locals(wait=Wait, waiters=cython.Py_ssize_t, count=cython.Py_ssize_t)
    cdef _dispatch_fetches(self)
    cdef _try(self, Wait wait)

    @cython.locals(wait=Wait, stamp_ns=cython.longlong, answered=cython.bint)
    cdef _settle_new_waits(self)
    cdef _park_again(self)
    cdef _park(self, Wait wait, bint front)
    cdef _may_wait_on(self, Wait wait)
    cdef _finish(self, Wait wait, jobs)
    cdef _answer(self, Wait wait, answer)
    cdef _give_back(self, jobs)
    cdef _lose(self, list completions)
    cdef tuple _take_flight(self, long long index)

    @cython.locals(i=cython.Py_ssize_t)
    cdef _resolve(self, list completions, list results)
    cdef _after_turn(self)
    cdef _arm_deadline(self)
