cimport cython


@cython.final
cdef class Meta:
    cdef public long long applied_index, applied_term
    cdef public bytes cluster_id
    cdef public long long stamp_ns, fencing, event_seq, event_first_seq, event_log_size
    cdef public long long next_queue_number
    cdef public bytes hash
    cdef public long long first_idempotency, next_idempotency
    cdef public bint result_schemas
    cdef public bytes configuration
