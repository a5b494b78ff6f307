cimport cython

from corvo.kv cimport documents
from corvo.mirror.tally cimport Tally
from corvo.model cimport Job


cdef class Found:
    cdef public unsigned long long number
    cdef public tuple place
    cdef public long long errors, started_ns


cdef class Round:
    cdef public object watermark, scan, others
    cdef public long long stamp_ns
    cdef public bint behind
    cdef public dict ids, oldest
    cdef public list jobs, gone, errors, queues

    @cython.locals(job=Job, old=Found, job_id=str)
    cpdef dict read_documents(self, object snapshot, dict found, dict queues)

    @cython.locals(job=Job)
    cdef dict _name_queues(self, object snapshot, dict queues)
    cpdef find_oldest(self, object snapshot)


cdef class Changes:
    cdef public dict inserts, numbers
    cdef public list updates, places, tags, moves, requeued, errors
    cdef public Tally tally
    cdef public unsigned long long next_number

    @cython.locals(tags=dict)
    cdef _add(self, Job job, unsigned long long number, tuple place)
    cdef _change(self, Job job, Found old, str queue, tuple place, unsigned long long fulltext)
    cdef _add_errors(self, Round read)
