from corvo._fast.http2.frames cimport FrameReader
from corvo._fast.http2.bodies cimport Bodies
from corvo._fast.http2.headers cimport check_trailers, read_fields
from corvo._fast.http2.hpack cimport Decoder
from corvo._fast.http.exchange cimport H1Context, Request
from corvo._fast.http2.streams cimport Stream

cdef int _PREFACE
cdef int _SETTINGS
cdef int _OPEN
cdef int _STOPPED
cdef int _DATA
cdef int _HEADERS
cdef int _WINDOW_UPDATE
cdef int _CONTINUATION


cdef class H2Conn(Bodies):
    cdef Decoder _decoder
    cdef list _block
    cdef Py_ssize_t _block_size, _block_empty, _streams_max, _frames_max, _priorities_per_stream
    cdef bint _block_ends_stream

    cpdef adopt(self, Request request, bytes settings)
    cdef Py_ssize_t _read_preface(self, bytes data) except -1
    cdef _take_frame(self, bytes data)
    cdef _take_headers(self, bytes data)
    cdef _take_continuation(self, bytes data)
    cdef _end_block(self, unsigned int stream_id, bytes block)
    cdef _open(self, unsigned int stream_id, list fields)
    cdef str _take_head(self, Request request, list fields)
    cdef _finish_input(self)
