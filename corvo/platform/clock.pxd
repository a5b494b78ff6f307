from corvo._fast.http.monotonic cimport MonotonicClock


cdef class Clock(MonotonicClock):
    cdef public object random_bytes
    cdef public long long pauses
    cdef public list on_pause, on_jump
    cdef object _wall, _tick_ns
    cdef long long _last_ns, _stamp_ns, _step_ns, _stepped_ns

    cpdef long long stamp(self) except? -1
