cimport cython


@cython.final
cdef class Batcher:
    cdef readonly Py_ssize_t count, size
    cdef Py_ssize_t _max_ops, _max_size
    cdef list _ops, _completions

    cpdef add(self, Py_ssize_t order_class, unsigned long long number, bytes payload, completion)
    cpdef tuple seal(self, long long stamp_ns, long long seed)
