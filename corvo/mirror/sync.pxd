cimport cython

from corvo.storage.records cimport jobs as job_records
from corvo.mirror cimport rows
from corvo.mirror.counters cimport ReportCounters
from corvo.model cimport Job, Queue


cdef class ExistingRow:
    cdef public unsigned long long number
    cdef public tuple facet
    cdef public long long errors, started_ns


cdef class SyncBatch:
    cdef public object watermark, scan, others
    cdef public long long stamp_ns
    cdef public bint behind
    cdef public dict ids, oldest
    cdef public list scanned, jobs, gone, errors, queues

    @cython.locals(old=ExistingRow, job_id=str, known=cython.longlong)
    cpdef read_documents(self, object snapshot, dict found)

    @cython.locals(ids=list, size=cython.longlong, at=cython.Py_ssize_t, job_id=str)
    cpdef Py_ssize_t read_scanned(self, object snapshot, list heads) except -1

    @cython.locals(job=Job, size=cython.longlong, bucket=cython.longlong)
    cdef long long _read_job(
        self, object get, str job_id, bytes head, long long known
    ) except -1

    @cython.locals(job=Job)
    cpdef dict name_queues(self, object snapshot, dict queues)
    cpdef find_oldest(self, object snapshot)


cdef class Changes:
    cdef dict _new
    cdef public dict inserts, numbers
    cdef public list updates, facets, tags, moves, requeued, errors
    cdef public ReportCounters report_counters
    cdef public unsigned long long next_number

    @cython.locals(queue=Queue, name=str, facet=tuple, old=ExistingRow, values=list)
    cdef _see(self, Job job, dict found, dict queues, unsigned long long fulltext)

    @cython.locals(jobs=list, values=list, job=Job, facet=tuple)
    cdef _number(self)

    @cython.locals(tags=dict)
    cdef _add(self, Job job, unsigned long long number, tuple facet)
    cdef _change(
        self, Job job, ExistingRow old, str queue, tuple facet, unsigned long long fulltext
    )
    cdef _add_errors(self, SyncBatch read, dict found)
