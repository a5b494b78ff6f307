cimport cython


@cython.final
cdef class Op:
    cdef readonly int number
    cdef readonly str name
    cdef readonly tuple fields
    cdef readonly str layout
    cdef readonly tuple names
    cdef readonly int order
    cdef readonly str result, meaning
    cdef readonly bint built, takes_key, adds_work, ends_leases
