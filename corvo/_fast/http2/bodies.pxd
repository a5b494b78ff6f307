from corvo._fast.http2.frames cimport FrameReader, frame, u32_frame
from corvo._fast.http2.control cimport Control
from corvo._fast.http.exchange cimport H1Context, Request
from corvo._fast.http2.streams cimport Stream


cdef class Bodies(Control):
    cdef list _ready, _continues
    cdef dict _receiving
    cdef Py_ssize_t _stream_room, _tiny_data, _room, _room_max, _credit, _empty_left, _tiny_left

    cdef str _begin_body(self, Stream stream)
    cdef _take_data(self, bytes data)
    cdef _charge(self, Stream stream, Py_ssize_t length)
    cdef _give_room(self, Stream stream)
    cdef str _add_data(self, Stream stream, bytes data)
    cdef str _end_body(self, Stream stream)
    cdef _tell(self, Stream stream)
    cdef _send_continues(self)
    cdef _refuse(self, Stream stream, error, str reason)
    cdef _drop_body(self, Stream stream)
    cdef _check_bodies(self, long long now_ns)
    cdef _body_too_large(self)
