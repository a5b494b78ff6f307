cimport cython


@cython.final
@cython.no_gc
cdef class JobOptions:
    # <generated: declare JOB_OPTIONS>
    cdef public str group_key
    cdef public str batch_id
    cdef public str chain_id
    cdef public long long chain_step
    cdef public bytes chain
    cdef public list depends_on
    cdef public long long on_dependency_failure
    cdef public bytes result_schema
    cdef public object expires_ns
    cdef public str hold_reason
    cdef public object hold_ends_ns
    cdef public long long hold_action
    cdef public bytes feedback
    cdef public list open_dependencies
    cdef public bint has_dependents
    cdef public bint has_logs
    # </generated>
    cdef public bint blocked


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Job:
    cdef public str id
    # Body.
    # <generated: declare JOB_BODY>
    cdef public bytes payload
    cdef public bytes tags
    cdef public long long max_retries
    cdef public long long backoff
    cdef public long long base_delay_ms
    cdef public long long max_delay_ms
    cdef public long long jitter_ppm
    cdef public long long created_ns
    cdef public str parent_id
    cdef public bytes unique_key
    cdef public long long unique_until
    cdef public long long unique_period_ns
    cdef public str schedule_id
    cdef public long long schedule_occurrence_ns
    # </generated>
    # Head.
    # <generated: declare JOB_HEAD>
    cdef public unsigned long long queue_number
    cdef public unsigned long long seq
    cdef public long long priority
    cdef public long long state
    cdef public long long attempt
    cdef public object scheduled_ns
    cdef public long long started_ns
    cdef public long long completed_ns
    cdef public long long failed_ns
    cdef public long long cancel_requested_ns
    cdef public long long lease_ns
    cdef public long long lease_expires_ns
    cdef public long long fencing
    cdef public long long lease_seed
    cdef public long long lease_term
    cdef public bint lease_touched
    cdef public long long releases
    cdef public str worker_id
    cdef public str hostname
    cdef public long long error_count
    cdef public long long event_seq
    cdef public bint provider_error
    cdef public bint keeps_position
    cdef public long long ready_ns
    cdef public bint has_options
    cdef public bint data_apart
    cdef public long long returned_ns
    # </generated>
    # Data.
    # <generated: declare JOB_DATA>
    cdef public bytes checkpoint
    cdef public bytes progress
    cdef public bytes result
    # </generated>
    cdef public JobOptions options
    # State of the write buffer, never stored.
    cdef public bint body_apart
    cdef public long long size
    cdef public str token
    cdef public int dirty
    cdef public bint resident, deleted
    cdef public bytes stored_row, stored_expiry

    cpdef long long ready_since(self) except? 0


@cython.final
cdef class Worker:
    cdef public str id
    # <generated: declare WORKER>
    cdef public str hostname
    cdef public list queues
    cdef public long long started_ns
    cdef public long long seen_ns
    # </generated>
    cdef public bint dirty


@cython.final
cdef class Queue:
    cdef public str name
    # <generated: declare QUEUE>
    cdef public unsigned long long number
    cdef public bint paused
    cdef public object max_concurrency
    cdef public long long created_ns
    cdef public unsigned long long next_seq
    cdef public list counts
    cdef public long long enqueued_total
    cdef public long long completed_total
    cdef public long long failed_total
    cdef public long long dead_total
    cdef public long long expired_total
    cdef public bint draining
    cdef public long long cleared_seq
    cdef public list retention_ns
    cdef public long long rate_limit
    cdef public long long rate_window_ns
    cdef public long long group_concurrency
    cdef public long long aging_after_ns
    cdef public unsigned long long turn
    cdef public unsigned long long served
    # </generated>
    cdef public bint destroyed
    cdef public bint dirty

    cpdef bint pending_deletion(self) except -1


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Enqueued:
    cdef public str job_id
    cdef public int state
    cdef public bint duplicate
    cdef public bytes result


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Fetched:
    cdef public str job_id, queue
    cdef public bytes payload, tags, checkpoint
    cdef public long long attempt, max_retries
    cdef public str schedule_id
    cdef public long long schedule_occurrence_ns, lease_ns, fencing
    cdef public str token
    cdef public bytes feedback, result_schema


@cython.final
cdef class Acked:
    cdef public Py_ssize_t count
    cdef public list refused
