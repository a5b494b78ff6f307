cimport cython

from corvo._fast.codec cimport keys
from corvo.fsm.state cimport index_rows
from corvo.fsm.state.event_log cimport EventLog
from corvo.fsm.state.log_lines cimport LogRows
from corvo.fsm.state.row_overlay cimport Links, RowOverlay
from corvo.storage.records cimport jobs as job_records, queues as queue_records
from corvo.storage.records.meta cimport Meta
from corvo.model cimport JobOptions, Job, Queue

cdef int SEQ_BITS, ACTIVE, PENDING, DIRTY_HEAD, DIRTY_BODY, DIRTY_DATA, DIRTY_OPTIONS
cdef long long JOB_SIZE, ROW_SIZE, PART_INSIDE_SIZE_MAX, HEAD_INSIDE_SIZE_MAX
cdef tuple ENDED

cpdef unsigned long long position(Job job)


@cython.locals(bound=cython.Py_ssize_t)
cdef bint _data_too_large(Job job) except -1


@cython.final
cdef class WriteBuffer:
    cdef public object state_store
    cdef public Meta meta
    cdef public dict jobs, positions
    cdef public long long jobs_size, rows_size
    cdef long long _clean_size
    cdef list _dirty, _deletes
    cdef dict _queues, _workers
    cdef object _totals
    cdef dict _errors, _locks, _schedules, _operations, _chunks, _batches
    cdef public Links dependents, children, members
    cdef public RowOverlay rows
    cdef public LogRows logs
    cdef public EventLog events
    cdef public object outbox

    @cython.locals(count=cython.longlong)
    cpdef documents(self)
    cdef Py_ssize_t _links(self) except -1

    @cython.locals(job=Job, size=cython.longlong, key=bytes, value=bytes)
    cpdef flush(self)

    @cython.locals(rows_size=cython.longlong)
    cpdef dirty_size(self)

    @cython.locals(job=Job)
    cpdef Job find(self, str job_id)

    @cython.locals(job=Job)
    cdef Job _load(self, str job_id)
    cpdef add(self, Job job)
    cpdef touch(self, Job job)
    cdef _enter(self, Job job)
    cpdef JobOptions touch_options(self, Job job)

    @cython.locals(more=cython.longlong)
    cpdef set_data(self, Job job, bytes checkpoint, bytes progress, bytes result)
    cpdef touch_queue(self, Queue queue)
    cpdef list index_rows(self, bytes prefix, bytes start, long long limit)

    @cython.locals(key=bytes)
    cdef _put_job(self, Job job, list indexes, list heads, list parts, list deletes)

    @cython.locals(job=Job, queue=Queue, alone=cython.bint, kept=list)
    cdef _written(self)

    @cython.locals(job=Job)
    cdef _keep(self, list kept)
    cdef _leave(self, Job job)

    @cython.locals(job=Job)
    cdef _evict(self)
