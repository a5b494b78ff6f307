cimport cython


@cython.final
cdef class Meta:
    # <generated: declare META>
    cdef public long long applied_index
    cdef public long long applied_term
    cdef public bytes cluster_id
    cdef public long long stamp_ns
    cdef public long long fencing
    cdef public long long event_seq
    cdef public long long event_first_seq
    cdef public long long event_log_size
    cdef public long long next_queue_number
    cdef public bytes hash
    cdef public long long first_idempotency
    cdef public long long next_idempotency
    cdef public bint result_schemas
    cdef public bytes configuration
    # </generated>
