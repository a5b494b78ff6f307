cimport cython


@cython.final
cdef class Feed:
    cdef public tuple readers

    cpdef publish(self, list events)
