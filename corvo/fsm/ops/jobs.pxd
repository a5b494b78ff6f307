cimport cython

from corvo._fast.codec.fields cimport Reader
from corvo.fsm.ops cimport finish, leases
from corvo.fsm cimport states
from corvo.fsm.state.state cimport Core
from corvo.fsm.state.queue_index cimport Lane
from corvo.model cimport Acked, Enqueued, Extras, Fetched, Job

cdef Reader _reader
cdef int ACTIVE, PRIORITIES, COMPLETED
cdef int _NOWHERE, _ENQUEUE, _ENQUEUE_HELD, _SCHEDULE, _FETCH, _ACK, _ENQUEUED, _STARTED
cdef list _ENQUEUED_DATA, _ATTEMPT_DATA

cdef bytes _attempt_data(long long attempt)


@cython.locals(job=Job, queue=str, extras=bytes)
cpdef enqueue(Core core, bytes payload)


@cython.locals(items=list, item=bytes, jobs=list, job=Job, queue=str, extras=bytes)
cpdef enqueue_batch(Core core, bytes payload)


@cython.locals(job=Job, r=Reader)
cpdef tuple read_enqueue(bytes payload)


@cython.locals(
    lane=Lane, state=cython.int, trigger=cython.int, stamp_ns=cython.longlong, data=bytes,
    held=cython.bint
)
cpdef Enqueued create(Core core, Job job, str queue, bytes extras)


@cython.locals(state=cython.int)
cdef Fetched _start(
    Core core, Lane lane, Job job, str worker_id, str hostname, long long lease_ns, bytes worker
)

cdef dict _WORKER_DATA

cdef bytes _new_worker_data(str worker_id)


cdef bytes _started_data(long long attempt, bytes worker)


@cython.locals(data=bytes)
cdef bytes _worker_data(str worker_id)


@cython.locals(job=Job, expired=cython.int)
cdef Job _next_job(Core core, Lane lane)


@cython.locals(
    lane=Lane, job=Job, r=Reader, queues=list, lease_ns=cython.longlong, worker_id=str,
    hostname=str
)
cpdef fetch(Core core, bytes payload)


@cython.locals(
    queues=list, worker_id=str, hostname=str, lease_ns=cython.longlong, room=cython.longlong,
    count=cython.Py_ssize_t, worker=bytes, fetched=list, lanes=list, left=list, lane=Lane, job=Job
)
cpdef fetch_batch(Core core, bytes payload)


@cython.locals(
    job=Job, lane=Lane, r=Reader, job_id=str, token=str, result=bytes, checkpoint=bytes,
    step=bytes
)
cpdef ack(Core core, bytes payload)


@cython.locals(items=list, acked=Acked, i=cython.Py_ssize_t)
cpdef ack_batch(Core core, bytes payload)
