cimport cython

from corvo._fast.fields cimport Reader, Writer
from corvo.feed cimport Change
from corvo.model cimport Job

cdef Writer _writer, _body_writer
cdef Reader _reader


cdef _write_body(Writer w, Job job)
cpdef bytes encode_body(Job job)


@cython.locals(w=Writer)
cpdef bytes encode_head(Job job)


@cython.locals(job=Job, body=bytes)
cpdef Job decode_head(str job_id, bytes data)


@cython.locals(r=Reader)
cdef bytes _read_head(Job job, bytes data)

cpdef decode_body(Job job, bytes data)


@cython.locals(r=Reader)
cdef _read_body(Job job, bytes data)


@cython.locals(
    w=Writer, count=cython.Py_ssize_t, i=cython.Py_ssize_t, first=Change, change=Change,
    names=list, positions=list, queue=str, number=cython.Py_ssize_t, before=str
)
cpdef bytes encode_events(list changes)
