cdef int _DATA
cdef int _HEADERS
cdef int _CONTINUATION
cdef int _END_STREAM
cdef int _END_HEADERS
cdef int _PADDED
cdef int _WITH_PRIORITY
cdef int _CONNECTION
cdef int _STREAM
cdef Py_ssize_t _HEAD_SIZE
cdef Py_ssize_t _SIZE_MAX


cdef class FrameReader:
    cdef readonly int type, flags
    cdef readonly bint ends_stream, ends_headers
    cdef readonly unsigned int stream_id, value
    cdef readonly Py_ssize_t size, start, end, following

    cpdef bint read(self, bytes data, Py_ssize_t pos) except -1
    cdef _check_head(self)
    cdef _take_padding(self, const unsigned char *p)
    cdef _take_headers(self, const unsigned char *p)
    cdef _check_priority(self, const unsigned char *p)
    cdef _take_promise(self, const unsigned char *p)


cpdef bytes frame_head(Py_ssize_t size, int kind, int flags, unsigned int stream_id)
cpdef bytes frame(int kind, int flags, unsigned int stream_id, bytes payload)
cpdef bytes u32_frame(int kind, unsigned int stream_id, unsigned int value)
