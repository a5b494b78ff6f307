cimport cython

from corvo.model cimport Job

cdef long long _MINUTE_NS, _BUCKET_NS


@cython.final
cdef class ReportCounters:
    cdef long long _horizon_ns
    cdef dict _minutes, _latencies

    cpdef enqueued(self, unsigned long long queue, long long at_ns)
    cpdef failed(self, unsigned long long queue, Py_ssize_t kind, long long at_ns)

    @cython.locals(started_ns=cython.longlong)
    cpdef see(self, Job job, bint was_completed, long long was_started_ns)

    @cython.locals(key=tuple)
    cdef _add_latency(self, unsigned long long queue, int kind, long long at_ns, object took_ns)

    @cython.locals(key=tuple, counts=list)
    cdef _count(self, unsigned long long queue, long long at_ns, int counter)
