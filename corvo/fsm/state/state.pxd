cimport cython

from corvo._fast.index.ready cimport DueHeap
from corvo.fsm.state cimport index_rows
from corvo.fsm.state.deadlines cimport DueTimes
from corvo.fsm.state.groups cimport Groups
from corvo.fsm.state.queue_index cimport QueueIndex
from corvo.fsm.state.write_buffer cimport WriteBuffer, position
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
cdef class State:
    cdef public WriteBuffer buffer
    cdef public Meta meta
    cdef public dict queue_indexes, numbered, schedules, schedule_names
    cdef public object workers
    cdef public list occurrences
    cdef public object queue_names
    cdef list _numbers
    cdef public DueHeap leases
    cdef public Py_ssize_t leases_room
    cdef public DueTimes waiting, holds, expiring
    cdef public dict operations
    cdef public list running
    cdef public long long queues_pending_deletion
    cdef public dict pending_dependents, open_dependencies
    cdef public list next_pending_dependents
    cdef public object idempotency_records
    cdef public long long oldest_idempotency_ns
    cdef public list woken
    cdef public long long term, stamp_ns, seed
    cdef public Py_ssize_t op_position
    cdef public EventBlock block
    cdef public bytes last_block
    cdef public list ended
    cdef public long long resolved_dependents

    cpdef begin(self, long long term, long long stamp_ns, long long seed)

    @cython.locals(block=bytes)
    cpdef end(self)
    cpdef emit(self, QueueIndex queue_index, Job job, int type, bytes data)
    cdef QueueIndex _add_queue_index(self, Queue queue)
    cpdef list numbers(self)

    @cython.locals(queue_index=QueueIndex, found=list)
    cpdef list next_seqs(self)

    @cython.locals(queue_index=QueueIndex, queue=Queue)
    cpdef QueueIndex queue_index(self, str name)
    cpdef object no_room(self, str name)
    cpdef QueueIndex queue_index_of(self, Job job)
    cpdef wake(self, QueueIndex queue_index)

    @cython.locals(job=Job)
    cpdef Job find(self, str job_id)

    @cython.locals(queue_index=QueueIndex, queue=Queue)
    cpdef bint pending_deletion(self, Job job) except -1

    @cython.locals(queue=Queue)
    cpdef add(self, QueueIndex queue_index, Job job, int state)

    @cython.locals(
        before=cython.ulonglong, expired_ns=cython.longlong, was_active=cython.bint,
        was_held=cython.bint
    )
    cpdef move(self, QueueIndex queue_index, Job job, int state, bint tail=*)
    cpdef move_back(self, QueueIndex queue_index, Job job, int state)
    cdef _move(self, QueueIndex queue_index, QueueIndex target, Job job, int state, bint tail)
    cdef _count_start(self, QueueIndex queue_index, Job job)

    @cython.locals(stays=cython.bint)
    cdef _follow_expiry(
        self, Job job, unsigned long long before, long long expired_ns, int state
    )
    cdef Groups _groups(self, QueueIndex queue_index)

    @cython.locals(groups=Groups)
    cdef _rank_group(self, QueueIndex queue_index, Job job)

    @cython.locals(queue=Queue, pending_deletion=cython.bint, grouped=cython.bint)
    cdef _depart(self, QueueIndex queue_index, Job job)

    @cython.locals(queue=Queue, state=cython.int, grouped=cython.bint)
    cdef _arrive(self, QueueIndex queue_index, Job job)
    cpdef extend(self, QueueIndex queue_index, Job job, long long expires_ns)

    @cython.locals(first=cython.ulonglong, seq=cython.ulonglong, aging_ns=cython.longlong)
    cpdef Job ready_job(self, QueueIndex queue_index)
    cdef Py_ssize_t _ready_since(self, QueueIndex queue_index, unsigned long long seq) except -1

    @cython.locals(job=Job, since_ns=cython.longlong, oldest_ns=cython.longlong)
    cpdef long long oldest_ready_ns(self, QueueIndex queue_index, int priority) except? 0

    @cython.locals(job=Job)
    cpdef Job job_at(self, QueueIndex queue_index, int priority, unsigned long long seq)

    @cython.locals(worker=Worker, oldest=Worker)
    cpdef record_worker(self, str worker_id, str hostname, list queues)

    @cython.locals(worker=Worker, oldest=Worker)
    cpdef Worker oldest_worker(self)
    cpdef remove_worker(self, Worker worker)
