cdef int LINE
cdef int FIELDS
cdef int LENGTH
cdef int CHUNKED
cdef int STOPPED


cdef class H1Context:
    cdef readonly Py_ssize_t head_size_max, head_fields_max, target_size_max, body_size_max
    cdef readonly Py_ssize_t bodies_in_flight_size_max
    cdef readonly Py_ssize_t trailer_fields_max, trailer_size_max
    cdef readonly Py_ssize_t chunks_max, chunk_mean_min, chunk_mean_after, feed_slice
    cdef readonly Py_ssize_t pipeline_max, pipeline_resume, unsent_size_max
    cdef readonly long long head_wait_ns, body_idle_ns, body_rate_min, keep_alive_idle_ns
    cdef readonly object monotonic
    cdef readonly Py_ssize_t bodies_size
    cdef public bint draining
    cdef public long long index
    cdef object _date
    cdef bytes _date_line, _request_id_prefix, _valid_host
    cdef long long _date_until_ns, _requests

    cdef bytes new_request_id(self)
    cdef bytes date_line(self, long long now_ns)


cdef class Request:
    cdef public str method, peer
    cdef public bytes path, query, body
    cdef public bytes host, content_type, content_length, authorization, api_key, cookie
    cdef public bytes request_id, idempotency_key, namespace, min_index
    cdef public bytes client_name, client_version, expect
    cdef public tuple params
    cdef public bint keep_alive
    cdef readonly bint head_only, replied, delivered, abandoned
    cdef readonly H1Conn conn
    cdef readonly long long arrived_ns
    cdef public object on_abandoned, context, meter
    cdef Request _next
    cdef bint _old_client
    cdef Py_ssize_t _body_size
    cdef long long _replied_ns, _index
    cdef int _status
    cdef bytes _reply_body, _reply_headers, _reply_type

    cdef _abandon(self)
    cdef bytes _render(self, bint close)


cdef class H1Conn:
    cdef readonly H1Context context
    cdef readonly str peer
    cdef readonly bint want_close
    cdef readonly Py_ssize_t unsent_size, pending
    cdef public object on_output
    cdef public bint blocked
    cdef int _phase
    cdef bint _full, _ended, _served
    cdef long long _idle_ns, _read_ns, _started_ns
    cdef object _parser, _refusal
    cdef bytes _rest, _line, _tail
    cdef Request _request, _first, _last
    cdef list _ready, _out, _leaving
    cdef bytes _authority, _codings
    cdef bint _began, _upgrade_offered, _upgraded, _muted, _continue_due
    cdef Py_ssize_t _head_size, _fields, _body_left, _body_size, _rate_size
    cdef Py_ssize_t _chunks, _trailer_fields, _trailer_size, _framing_run
    cdef bytearray _body

    cdef bint _is_paused(self)
    cdef bint _between_requests(self)
    cdef Py_ssize_t _read_line(self, bytes data, Py_ssize_t pos) except -1
    cdef Py_ssize_t _read_fields(self, bytes data, Py_ssize_t pos) except -1
    cdef Py_ssize_t _read_length(self, bytes data, Py_ssize_t pos) except -1
    cdef Py_ssize_t _read_chunked(self, bytes data, Py_ssize_t pos) except -1
    cdef Py_ssize_t _next_cut(self, bytes data, Py_ssize_t pos) except -1
    cdef _keep_tail(self, bytes piece)
    cdef _parse(self, bytes piece)
    cdef _resume_after_upgrade(self)
    cdef _take_line(self, Request request, bytes line)
    cdef bytes _take_other_target(self, Request request, bytes target)
    cdef _fail(self, error)
    cdef _check_host(self, Request request)
    cdef _choose_framing(self, Request request)
    cdef _drop_trailer(self, bytes name, bytes value)
    cdef _complete(self)
    cdef _reset_message(self)
    cdef _refuse(self, error)
    cdef _refuse_target(self)
    cdef _refuse_head(self)
    cdef _target_too_long(self)
    cdef _body_too_large(self)
    cdef _stop(self)
    cdef _close(self)
    cdef _finish_input(self)
    cdef _enqueue(self, Request request)
    cdef _release(self)
    cdef _send_continue(self)
