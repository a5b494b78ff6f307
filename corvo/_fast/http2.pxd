from corvo._fast.frames cimport FrameReader, frame, u32_frame
from corvo._fast.h2control cimport Control
from corvo._fast.h2fields cimport check_trailers, read_fields
from corvo._fast.hpack cimport Decoder
from corvo._fast.replies cimport H1Context, Request
from corvo._fast.streams cimport Stream

cdef int _PREFACE
cdef int _SETTINGS
cdef int _OPEN
cdef int _STOPPED
cdef int _DATA
cdef int _HEADERS
cdef int _WINDOW_UPDATE
cdef int _CONTINUATION


cdef class H2Conn(Control):
    cdef Decoder _decoder
    cdef list _ready, _block, _continues
    cdef Py_ssize_t _block_size, _block_empty, _streams_max, _stream_room, _frames_max, _tiny_data
    cdef Py_ssize_t _room, _room_max, _credit, _empty_left, _tiny_left, _priorities_per_stream
    cdef bint _block_ends_stream
    cdef dict _receiving

    cpdef adopt(self, Request request, bytes settings)
    cdef Py_ssize_t _read_preface(self, bytes data) except -1
    cdef _take_frame(self, bytes data)
    cdef _take_headers(self, bytes data)
    cdef _take_continuation(self, bytes data)
    cdef _end_block(self, unsigned int stream_id, bytes block)
    cdef _open(self, unsigned int stream_id, list fields)
    cdef str _take_head(self, Request request, list fields)
    cdef str _begin_body(self, Stream stream)
    cdef _take_data(self, bytes data)
    cdef _charge(self, Stream stream, Py_ssize_t length)
    cdef str _add_data(self, Stream stream, bytes data)
    cdef str _end_body(self, Stream stream)
    cdef _send_continues(self)
    cdef _refuse(self, Stream stream, error, str reason)
    cdef _drop_body(self, Stream stream)
    cdef _check_bodies(self, long long now_ns)
    cdef _finish_input(self)
    cdef _body_too_large(self)
