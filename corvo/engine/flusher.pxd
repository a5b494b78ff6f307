from corvo._fast.metrics cimport Histogram, TurnMetrics
from corvo.platform.clock cimport Clock


cdef class StoreFlusher:
    cdef object _loop, _log, _machine, _disk, _on_fatal, _timer
    cdef Clock _clock
    cdef long long _dirty_since_ns, _applied_ns, _documents, _grown, _size_max
    cdef bint _refused
    cdef public bint disk_full, throttled, wanted
    cdef public object on_flushed
    cdef readonly Histogram flush_time
    cdef public TurnMetrics turns
    cdef public long long index, flushes, flush_ns_last, flush_ns_max

    cpdef after_apply(self, Py_ssize_t ops=*)
    cdef long long _bound(self, long long documents) except -1
    cpdef flush(self)
