cimport cython

from corvo._fast.http.http1_rules cimport (
    check_host, is_foreign, read_framing, take_line, target_too_long
)
from corvo._fast.http.head cimport find_byte, find_head_end, is_cacheable_head, read_fields
from corvo._fast.http.head_cache cimport CachedHead, HeadCache
from corvo._fast.http.exchange cimport H1Context, ReplyQueue, Request

cdef int _LINE
cdef int _FIELDS
cdef int _LENGTH
cdef int _CHUNKED
cdef int _STOPPED
cdef long long _CHUNKED_BODY
cdef int _LF
cdef int _CR
cdef int _A
cdef int _Z


cdef class H1Conn(ReplyQueue):
    cdef readonly object successor
    cdef readonly bytes unread
    cdef HeadCache _cached
    cdef int _phase
    cdef bint _ended, _served, _switches
    cdef long long _read_ns, _started_ns
    cdef object _parser, _refusal
    cdef str _refusal_reason
    cdef bytes _rest, _line, _tail
    cdef Request _request
    cdef list _ready, _head
    cdef bytes _authority
    cdef bint _began, _upgraded, _plain, _muted
    cdef Py_ssize_t _head_size, _body_left, _body_size, _rate_size
    cdef Py_ssize_t _chunks, _trailer_fields, _trailer_size, _framing_run
    cdef bytearray _body

    cdef bint _between_requests(self)
    cdef Py_ssize_t _read_line(self, bytes data, Py_ssize_t pos) except -1
    cdef Py_ssize_t _read_fields(self, bytes data, Py_ssize_t pos) except -1

    @cython.locals(cached=CachedHead)
    cdef Py_ssize_t _read_cached(self, bytes data, Py_ssize_t pos) except -1
    cdef _take_cacheable_head(self, bytes head)
    cdef _end_cacheable_head(self, Request request)
    cdef _take_fields(self, Request request, bytes head)
    cdef _name_request(self, Request request)
    cpdef on_body(self, bytes data)
    cdef Py_ssize_t _read_length(self, bytes data, Py_ssize_t pos) except -1
    cdef Py_ssize_t _read_chunked(self, bytes data, Py_ssize_t pos) except -1
    cdef Py_ssize_t _next_cut(self, bytes data, Py_ssize_t pos) except -1
    cdef _keep_tail(self, bytes piece)
    cdef _parse(self, bytes piece)
    cdef _resume_after_upgrade(self)
    cdef bint _may_give_way(self)
    cdef _give_way(self, Request request, bytes settings)
    cdef _read_body_by(self, callbacks, bytes framing)
    cdef _fail(self, error, str reason)
    cdef _choose_framing(self, Request request)
    cdef _complete(self)
    cdef _reset_message(self)
    cdef _refuse(self, error, str reason)
    cdef _refuse_head(self)
    cdef _body_too_large(self)
    cdef _finish_input(self)
