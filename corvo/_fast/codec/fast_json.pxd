cdef unsigned char _VERSION
cdef unsigned long long _ONES, _HIGH_BITS, _SPACES, _QUOTES, _BACKSLASHES
cdef int _DEPTH_MAX, _NAME_SIZE_MAX
cdef unsigned char _TAB, _LF, _CR, _SPACE, _QUOTE, _COMMA, _MINUS, _DOT
cdef unsigned char _ZERO, _NINE, _COLON, _LIST, _BACKSLASH, _LIST_END
cdef unsigned char _OBJECT, _OBJECT_END, _DELETE


cdef class FastEnqueue:
    cdef readonly str queue
    cdef bytes _front, _tail, _body, _name
    cdef Py_ssize_t _payload_size_max, _start, _end

    cpdef bint scan(self, bytes body) except -1
    cdef bint _keep(self, bytes body, Py_ssize_t start, Py_ssize_t end) except -1
    cpdef bytes encode(self, str job_id)


cpdef bytes fast_ack(str job_id, bytes body)
cpdef bint is_value(bytes data, Py_ssize_t start, Py_ssize_t end) noexcept
cpdef bint is_job_id(bytes data, Py_ssize_t start, Py_ssize_t end) noexcept
