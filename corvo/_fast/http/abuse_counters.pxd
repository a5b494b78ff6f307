cdef class Refusals:
    cdef readonly dict counts

    cpdef count(self, str reason)


cpdef str reason_of(error)
