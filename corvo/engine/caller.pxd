cimport cython


@cython.final
cdef class Caller:
    cdef readonly str identity, namespace
    cdef readonly tuple idempotency
