cimport cython


@cython.final
cdef class Op:
    cdef readonly int number
    cdef readonly str name, layout
    cdef readonly int order
    cdef readonly bint built, adds_work, ends_leases
