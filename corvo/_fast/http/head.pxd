from corvo._fast.http.exchange cimport Request

cdef int _TAB
cdef int _LF
cdef int _CR
cdef int _SPACE
cdef int _COLON
cdef int _DELETE
cdef int _LENGTH_DIGITS_MAX
cdef bytes _TOKEN, _TARGET
cdef int _RARE_SIZE_MIN


cdef bytes _once(bytes before, bytes value, str name)
cdef _take_field(Request request, const unsigned char *p, Py_ssize_t at, Py_ssize_t size,
                 bytes value)
cpdef Py_ssize_t find_byte(bytes data, int byte, Py_ssize_t start) except -2
cpdef Py_ssize_t find_head_end(bytes data, Py_ssize_t start) except -2
cpdef read_fields(Request request, bytes head, Py_ssize_t fields_max)
cpdef bint is_cacheable_head(bytes head) except -1
cdef bint _is_harmless(const unsigned char *p, Py_ssize_t at, Py_ssize_t size) noexcept
cpdef take_rare(Request request, bytes name, bytes value)
