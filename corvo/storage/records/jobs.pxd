cimport cython

from corvo._fast.codec.fields cimport Reader, Writer
from corvo.model cimport Job, JobOptions, Worker

cdef Writer _writer, _part_writer
cdef Reader _reader


cdef _write_job_body(Writer w, Job job)
cpdef bytes encode_body(Job job)


@cython.locals(w=Writer)
cpdef bytes encode_head(Job job)
cdef _write_data(Writer w, Job job)
cdef _write_body(Writer w, Job job)


@cython.locals(job=Job, inside=bytes, body=bytes)
cpdef Job decode_head(str job_id, bytes data)


@cython.locals(r=Reader, data=bytes, body=bytes)
cdef tuple _read_head(Job job, bytes row)

cpdef bytes encode_data(Job job)
cdef bint _has_data(Job job) except -1
cdef _write_job_data(Writer w, Job job)
cpdef decode_data(Job job, bytes data)


@cython.locals(r=Reader)
cdef _read_data(Job job, bytes data)

cpdef decode_body(Job job, bytes data)


@cython.locals(r=Reader)
cdef _read_body(Job job, bytes data)


@cython.locals(r=Reader)
cdef _read_worker(Worker worker, bytes data)


cpdef tuple read_new_options(JobOptions options, bytes payload)
