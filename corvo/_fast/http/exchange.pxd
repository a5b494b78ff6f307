from corvo._fast.metrics cimport RouteMetrics
from corvo._fast.http.abuse_counters cimport AbuseCounters
from corvo._fast.http.monotonic cimport MonotonicClock

cdef tuple _TIMINGS, _THOUSANDTHS, _JSON_LENGTHS, _ID_ENDS
cdef dict _STATUS_LINES
cdef int _READY

cpdef bytes join(bytes a, bytes b, bytes c, bytes d, bytes e, bytes f, bytes g)


cdef class HttpConn
cdef class Request


cdef class H1Context:
    cdef readonly Py_ssize_t head_size_max, head_fields_max, target_size_max, body_size_max
    cdef readonly Py_ssize_t bodies_in_flight_size_max
    cdef readonly Py_ssize_t trailer_fields_max, trailer_size_max
    cdef readonly Py_ssize_t chunks_max, chunk_mean_min, chunk_mean_after, feed_slice
    cdef readonly Py_ssize_t pipeline_max, pipeline_resume, unsent_size_max
    cdef readonly long long head_wait_ns, body_idle_ns, body_rate_min
    cdef readonly long long keep_alive_idle_ns, write_stall_ns
    cdef readonly Py_ssize_t bodies_size
    cdef public bint draining
    cdef public long long index
    cdef readonly object http2
    cdef public object takes_pieces
    cdef public bint keeps_fields
    cdef readonly AbuseCounters abuse_counters
    cdef public object cached, browser_guard
    cdef MonotonicClock _monotonic
    cdef object _date
    cdef bytes _date_text, _date_line, _request_id_prefix, _id_start, _valid_host
    cdef dict _starts
    cdef long long _date_until_ns, _requests

    cdef bytes _index_line
    cdef long long _line_index

    cpdef long long monotonic(self) except? -1
    cdef _take_host(self, Request request)
    cdef _check_origin(self, Request request)
    cdef bytes _new_request_id(self)
    cdef bytes _get_start(self, int status, long long now_ns)
    cdef bytes _get_date(self, long long now_ns)
    cdef _renew_date(self, long long now_ns)
    cdef bytes _get_index_line(self, long long index)


cdef class Request:
    cdef public str method, peer
    cdef public bytes path, query, body
    cdef public bytes host, content_type, content_length, authorization, api_key, cookie
    cdef public bytes request_id, idempotency_key, namespace, min_index
    cdef public bytes client_name, client_version, forwarded, expect
    cdef public bytes origin, fetch_site, cors_headers
    cdef public dict rare
    cdef public list fields
    cdef public tuple params
    cdef public bint keep_alive, unsure
    cdef readonly bint head_only, replied, delivered, abandoned, streaming, receiving
    cdef readonly Py_ssize_t unsent_size
    cdef readonly HttpConn conn
    cdef readonly long long arrived_ns
    cdef public object on_abandoned, on_writable, on_body, context, route, caller
    cdef public RouteMetrics route_metrics
    cdef Request _next
    cdef unsigned int _stream_id
    cdef bint _old_client, _upgrade_offered
    cdef bytes _codings
    cdef Py_ssize_t _body_size
    cdef long long _replied_ns, _index
    cdef int _status
    cdef bytes _reply_body, _reply_headers, _reply_type
    cdef list _pieces
    cdef bint _head_sent
    cdef bytes _trailers

    cpdef reply(self, int status, bytes body=*, bytes headers=*, bytes content_type=*)
    cpdef bytes take_body(self)
    cpdef keep_body(self, Py_ssize_t size)
    cdef _abandon(self)
    cdef bytes _render(self, bint close)


cdef class HttpConn:
    cdef readonly H1Context context
    cdef readonly str peer
    cdef readonly bint want_close
    cdef readonly Py_ssize_t unsent_size
    cdef public object on_output
    cdef public bint blocked
    cdef long long _idle_ns

    cpdef list feed(self, bytes data)
    cpdef bytes data_to_send(self)
    cpdef bint is_holding(self) except -1
    cdef _answered(self, Request request)
    cdef _piece_added(self, Request request, Py_ssize_t size)
    cdef _pieces_end(self, Request request)
    cdef bytes _take_body(self, Request request)
    cdef _keep_body(self, Request request, Py_ssize_t size)


cdef class ReplyQueue(HttpConn):
    cdef readonly Py_ssize_t pending
    cdef bint _full, _continue_due
    cdef Request _first, _last
    cdef list _out, _leaving

    cdef bint _is_paused(self)
    cdef bint _ends_here(self) except -1
    cdef _stop(self)
    cdef _close(self)
    cdef _enqueue(self, Request request)
    cdef _release(self)
    cdef _put(self, bytes data)
    cdef bint _release_stream(self, Request request, bint close) except -1
    cdef _take_pieces(self, Request request)
    cdef _send_continue(self)
    cdef _cancel_parked(self)
    cdef _abandon_all(self)
