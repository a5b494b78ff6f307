from corvo._fast.http.head cimport find_byte
from corvo._fast.http.exchange cimport Request

cdef dict _METHODS
cdef int _SPACE
cdef int _HASH
cdef int _SLASH
cdef int _QUESTION
cdef long long _CHUNKED
cdef long long _BEYOND


cpdef bytes take_line(Request request, bytes line, Py_ssize_t target_size_max)
cpdef bint is_foreign(bytes line)
cdef tuple _split_target(Request request, bytes target)
cpdef target_too_long(Py_ssize_t size_max)
cpdef check_host(Request request, bytes authority)
cdef _check_new_host(Request request, bytes authority)
cpdef long long read_framing(Request request) except -2
