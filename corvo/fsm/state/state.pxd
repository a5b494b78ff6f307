cimport cython

from corvo._fast.index.ready cimport DueHeap
from corvo.fsm.state cimport index_rows
from corvo.fsm.state.deadlines cimport DueTimes
from corvo.fsm.state.groups cimport Groups
from corvo.fsm.state.queue_index cimport Lane
from corvo.fsm.state.store cimport Store, place
from corvo.storage.records cimport jobs as job_records
from corvo.storage.records.events cimport EventBlock
from corvo.storage.records.meta cimport Meta
from corvo.model cimport Job, Queue, Worker

cdef int SEQ_BITS, ACTIVE, HELD, PENDING, SCHEDULED, PRIORITIES, NOWHERE
cdef unsigned long long NORMAL, SEQ_MASK
cdef long long EXPIRY_READ_NS, WORKER_TOUCH_NS
cdef Py_ssize_t QUEUES_MAX, WORKERS_MAX
cdef tuple ENDED

cdef bint _grouped(Job job) except -1


@cython.final
cdef class Core:
    cdef public Store store
    cdef public Meta meta
    cdef public dict lanes, numbered, workers, schedules, schedule_names
    cdef public list slots
    cdef list _numbers
    cdef public DueHeap leases
    cdef public Py_ssize_t leases_room
    cdef public DueTimes waiting, holds, expiring
    cdef public dict tasks
    cdef public list running
    cdef public long long doomed_queues
    cdef public dict unsettled
    cdef public list next_unsettled
    cdef public object replays
    cdef public long long oldest_replay_ns
    cdef public list woken
    cdef public long long term, stamp_ns, seed
    cdef public Py_ssize_t position
    cdef public EventBlock block
    cdef public bytes last_block
    cdef public list ended
    cdef public long long settled

    cpdef begin(self, long long term, long long stamp_ns, long long seed)

    @cython.locals(block=bytes)
    cpdef end(self)
    cpdef emit(self, Lane lane, Job job, int type, bytes data)
    cdef Lane _add_lane(self, Queue queue)
    cpdef list numbers(self)

    @cython.locals(lane=Lane, queue=Queue)
    cpdef Lane lane(self, str name)
    cpdef object no_room(self, str name)
    cpdef Lane lane_of(self, Job job)
    cpdef wake(self, Lane lane)

    @cython.locals(job=Job)
    cpdef Job find(self, str job_id)

    @cython.locals(lane=Lane, queue=Queue)
    cpdef bint doomed(self, Job job) except -1

    @cython.locals(queue=Queue)
    cpdef add(self, Lane lane, Job job, int state)

    @cython.locals(
        before=cython.ulonglong, expired_ns=cython.longlong, was_active=cython.bint,
        was_held=cython.bint
    )
    cpdef move(self, Lane lane, Job job, int state, bint tail=*)
    cpdef come_back(self, Lane lane, Job job, int state)
    cdef _move(self, Lane lane, Lane target, Job job, int state, bint tail)
    cdef _handed_out(self, Lane lane, Job job)

    @cython.locals(stays=cython.bint)
    cdef _follow_expiry(
        self, Job job, unsigned long long before, long long expired_ns, int state
    )
    cdef Groups _groups(self, Lane lane)

    @cython.locals(groups=Groups)
    cdef _settle_group(self, Lane lane, Job job)

    @cython.locals(queue=Queue, doomed=cython.bint, grouped=cython.bint)
    cdef _depart(self, Lane lane, Job job)

    @cython.locals(queue=Queue, state=cython.int, grouped=cython.bint)
    cdef _arrive(self, Lane lane, Job job)
    cpdef extend(self, Lane lane, Job job, long long expires_ns)

    @cython.locals(spot=cython.ulonglong, seq=cython.ulonglong, aging_ns=cython.longlong)
    cpdef Job ready_job(self, Lane lane)
    cdef Py_ssize_t _ready_since(self, Lane lane, unsigned long long seq) except -1

    @cython.locals(job=Job)
    cpdef Job job_at(self, Lane lane, int priority, unsigned long long seq)

    @cython.locals(worker=Worker)
    cpdef see_worker(self, str worker_id, str hostname, list queues)
