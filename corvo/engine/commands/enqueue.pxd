cimport cython

from corvo._fast.codec.fast_json cimport FastEnqueue
from corvo.engine.service cimport Service


@cython.final
cdef class EnqueueCommands:
    cdef Service _service
    cdef readonly FastEnqueue fast
    cdef tuple _defaults
    cdef object _options

    cpdef bytes fast_op(self, str queue, str payload, long long stamp_ns)
