from corvo._fast.replies cimport Request

cdef int _TAB
cdef int _LF
cdef int _CR
cdef int _SPACE
cdef int _COLON


cdef bytes _once(bytes before, bytes value, str name)
cdef _take_field(Request request, const unsigned char *p, Py_ssize_t at, Py_ssize_t size,
                 bytes value)
cpdef read_fields(Request request, bytes head, Py_ssize_t fields_max)
