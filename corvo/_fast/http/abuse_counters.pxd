cdef class AbuseCounters:
    cdef readonly dict counts

    cpdef count(self, str reason)


cpdef str reason_of(error)
