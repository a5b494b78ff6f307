cimport cython

from corvo._fast.ready cimport DueHeap
from corvo.kv cimport documents
from corvo.fsm.lane cimport Lane
from corvo.fsm.store cimport Store
from corvo.kv.meta cimport Meta
from corvo.model cimport Job, Queue

cdef int SEQ_BITS, ACTIVE, PENDING, PRIORITIES, NOWHERE
cdef unsigned long long SEQ_MASK
cdef long long WORKER_TOUCH_NS
cdef tuple ENDED


@cython.final
cdef class Core:
    cdef public Store store
    cdef public Meta meta
    cdef public dict lanes, numbered, workers, schedules, schedule_names
    cdef public list slots
    cdef public DueHeap leases, waiting
    cdef public set left
    cdef public list woken
    cdef public long long term, stamp_ns, seed
    cdef public Py_ssize_t position
    cdef public list changes

    cpdef begin(self, long long term, long long stamp_ns, long long seed)

    @cython.locals(changes=list, block=bytes)
    cpdef end(self)

    @cython.locals(seq=cython.longlong, meta=Meta)
    cpdef emit(self, Lane lane, Job job, int type, bytes data)
    cdef Lane _add_lane(self, Queue queue)

    @cython.locals(lane=Lane, queue=Queue)
    cpdef Lane lane(self, str name)
    cpdef Lane lane_of(self, Job job)
    cpdef wake(self, Lane lane)

    @cython.locals(queue=Queue)
    cpdef add(self, Lane lane, Job job, int state)
    cpdef move(self, Lane lane, Job job, int state, bint tail=*)

    @cython.locals(queue=Queue)
    cdef _depart(self, Lane lane, Job job)

    @cython.locals(queue=Queue, state=cython.int)
    cdef _arrive(self, Lane lane, Job job)
    cpdef extend(self, Lane lane, Job job, long long expires_ns)

    @cython.locals(spot=cython.ulonglong)
    cpdef Job ready_job(self, Lane lane)

    @cython.locals(job=Job)
    cpdef Job job_at(self, Lane lane, int priority, unsigned long long seq)
    cpdef see_worker(self, str worker_id, str hostname, list queues)
