from corvo._fast.http.head cimport find_byte, take_rare
from corvo._fast.http.exchange cimport H1Context, Request

cdef int _HASH
cdef int _SLASH
cdef int _QUESTION
cdef int _OTHER
cdef int _METHOD
cdef int _SCHEME
cdef int _AUTHORITY
cdef int _PATH
cdef int _PSEUDO_MAX
cdef int _HOST_FIELD
cdef int _EXPECT
cdef int _API_KEY
cdef int _CONTENT_TYPE
cdef int _REQUEST_ID
cdef int _AUTHORIZATION
cdef int _CONTENT_LENGTH
cdef int _IDEMPOTENCY_KEY
cdef int _NAMESPACE
cdef int _MIN_INDEX
cdef int _CLIENT_NAME
cdef int _CLIENT_VERSION
cdef int _FORWARDED
cdef int _ORIGIN
cdef int _FETCH_SITE
cdef int _ONCE_MAX
cdef int _COOKIE
cdef int _RARE


cdef class Field:
    cdef readonly bytes name, value
    cdef readonly str fault
    cdef readonly Py_ssize_t size
    cdef int kind


cdef str _judge_name(bytes name, bytes value)
cdef bint _is_value(bytes value) except -1
cdef _take_field(Request request, int kind, bytes value)
cdef str _check_target(Request request, unsigned int found, bytes scheme, bytes host)
cpdef str check_trailers(list[Field] fields)
cpdef str read_head(Request request, list[Field] fields)
cpdef str read_fields(Request request, list[Field] fields)
