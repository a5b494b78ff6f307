cimport cython

from corvo._fast.codec.fields cimport Writer
from corvo._fast.codec.protobuf cimport varint_size
from corvo.model cimport Fetched

cdef unsigned long long _JOBS, _JOB_ID, _QUEUE, _PAYLOAD, _ATTEMPT, _MAX_RETRIES, _LEASE
cdef unsigned long long _CHECKPOINT, _TAGS, _TOKEN, _FENCING
cdef long long SECOND_NS
cdef Writer _writer

cpdef dict job_values(Fetched job)


@cython.locals(
    w=Writer, job=Fetched, queue=bytes, text=bytes, size=cython.Py_ssize_t, lease_s=cython.longlong
)
cpdef bytes jobs_field(list jobs)
