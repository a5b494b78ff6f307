cimport cython


@cython.final
@cython.no_gc
cdef class JobOptions:
    cdef public str group_key, batch_id, chain_id
    cdef public long long chain_step
    cdef public bytes chain
    cdef public list depends_on
    cdef public int on_dependency_failure
    cdef public bytes result_schema
    cdef public object expires_ns  # may lie behind the year 2262
    cdef public str hold_reason
    cdef public object hold_ends_ns  # may lie behind the year 2262
    cdef public int hold_action
    cdef public bytes feedback
    cdef public list open_dependencies
    cdef public bint has_dependents, has_logs, blocked


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Job:
    # Body.
    cdef public str id
    cdef public bytes payload, tags
    cdef public long long max_retries, backoff, base_delay_ms, max_delay_ms, jitter_ppm, created_ns
    cdef public str parent_id
    cdef public bytes unique_key
    cdef public long long unique_until, unique_period_ns
    cdef public str schedule_id
    cdef public long long schedule_occurrence_ns
    # Head.
    cdef public unsigned long long queue_number, seq
    cdef public long long priority, state
    cdef public long long attempt
    cdef public object scheduled_ns  # may lie behind the year 2262
    cdef public bint keeps_position
    cdef public long long ready_ns, started_ns, completed_ns, failed_ns, cancel_requested_ns
    cdef public long long lease_ns, lease_expires_ns, fencing, lease_seed, lease_term
    cdef public bint lease_touched
    cdef public long long releases
    cdef public str worker_id, hostname
    cdef public long long error_count, event_seq
    cdef public bint provider_error, has_options, body_apart, data_apart
    # Data.
    cdef public bytes checkpoint, progress, result
    cdef public JobOptions options
    # Overlay bookkeeping.
    cdef public long long size
    cdef public str token
    cdef public int dirty
    cdef public bint resident, deleted
    cdef public bytes stored_row, stored_expiry


@cython.final
cdef class Worker:
    cdef public str id, hostname
    cdef public list queues
    cdef public long long started_ns, seen_ns
    cdef public bint dirty


@cython.final
cdef class Queue:
    cdef public unsigned long long number
    cdef public str name
    cdef public bint paused
    cdef public object max_concurrency
    cdef public long long created_ns
    cdef public unsigned long long next_seq
    cdef public list counts
    cdef public long long enqueued_total, completed_total, failed_total, dead_total, expired_total
    cdef public bint draining
    cdef public long long cleared_seq
    cdef public bint destroyed
    cdef public list retention_ns
    cdef public long long rate_limit, rate_window_ns, group_concurrency, aging_after_ns
    cdef public unsigned long long turn, served
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
