cimport cython

from corvo._fast.codec.fields cimport Reader
from corvo.fsm.ops cimport finish, leases
from corvo.fsm cimport states
from corvo.fsm.state.state cimport State
from corvo.fsm.state.queue_index cimport QueueIndex
from corvo.model cimport Acked, Enqueued, JobOptions, Fetched, Job

cdef Reader _reader
cdef int ACTIVE, PRIORITIES, COMPLETED
cdef int _NOWHERE, _ENQUEUE, _ENQUEUE_HELD, _SCHEDULE, _FETCH, _ACK, _ENQUEUED, _STARTED
cdef list _ENQUEUED_DATA, _ATTEMPT_DATA

cdef bytes _attempt_data(long long attempt)


@cython.locals(job=Job, queue=str, options=bytes)
cpdef enqueue(State state, bytes payload)


@cython.locals(items=list, item=bytes, jobs=list, job=Job, queue=str, options=bytes)
cpdef enqueue_batch(State state, bytes payload)


@cython.locals(job=Job, r=Reader, job_id=str, queue=str, options=bytes)
cpdef tuple read_enqueue(bytes payload)


@cython.locals(
    queue_index=QueueIndex, job_state=cython.int, trigger=cython.int,
    stamp_ns=cython.longlong, data=bytes, held=cython.bint
)
cpdef Enqueued create(State state, Job job, str queue, bytes options)


@cython.locals(job_state=cython.int)
cdef Fetched _start(
    State state, QueueIndex queue_index, Job job, str worker_id, str hostname, long long lease_ns,
    bytes worker
)

cdef dict _WORKER_DATA

cdef bytes _new_worker_data(str worker_id)


cdef bytes _started_data(long long attempt, bytes worker)


@cython.locals(data=bytes)
cdef bytes _worker_data(str worker_id)


@cython.locals(job=Job, expired=cython.int)
cdef Job _next_job(State state, QueueIndex queue_index)


@cython.locals(
    queue_index=QueueIndex, job=Job, r=Reader, queues=list, lease_ns=cython.longlong, worker_id=str,
    hostname=str
)
cpdef fetch(State state, bytes payload)


@cython.locals(
    queues=list, worker_id=str, hostname=str, lease_ns=cython.longlong, room=cython.longlong,
    count=cython.Py_ssize_t, worker=bytes, fetched=list, queue_indexes=list, left=list,
    queue_index=QueueIndex, job=Job
)
cpdef fetch_batch(State state, bytes payload)


@cython.locals(
    job=Job, queue_index=QueueIndex, r=Reader, job_id=str, token=str, result=bytes,
    checkpoint=bytes,
    step=bytes
)
cpdef ack(State state, bytes payload)


@cython.locals(acks=list, acked=Acked, i=cython.Py_ssize_t)
cpdef ack_batch(State state, bytes payload)
