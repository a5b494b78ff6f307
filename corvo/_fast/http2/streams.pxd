from corvo._fast.http2.frames cimport frame_head, u32_frame
from corvo._fast.http2.hpack cimport Encoder
from corvo._fast.http.exchange cimport HttpConn, Request

cdef int _DATA
cdef int _HEADERS
cdef int _END_HEADERS
cdef int _END_STREAM
cdef Py_ssize_t _SIZE_MAX
cdef Py_ssize_t _TURN_SIZE
cdef Py_ssize_t _HEAD_SIZE
cdef Py_ssize_t _READY
cdef tuple _SIZES
cdef tuple _TIMINGS
cdef tuple _THOUSANDTHS
cdef tuple _LENGTHS
cdef tuple _JSON_LENGTHS


cdef class Stream:
    cdef unsigned int id
    cdef Request request
    cdef bint open, discards, by_pieces, told, head_sent, gone, urgent, idle
    cdef Py_ssize_t room, credit, expected, received, held, tiny, sent
    cdef long long window, started_ns, read_ns, parked_ns
    cdef bytearray body


cdef class ReplyStreams(HttpConn):
    cdef dict _streams, _parked, _starts
    cdef object _ring
    cdef list _control
    cdef Py_ssize_t _control_size, _control_max, _small_data
    cdef bint _announced
    cdef long long _window, _initial_window, _updates_earned, _index
    cdef Encoder _encoder
    cdef bytes _date, _index_field

    cdef _announce(self)
    cdef _push(self, bytes frame)
    cdef _wake(self, Request request)
    cdef Py_ssize_t _send_turn(self, Stream stream, list pieces) except -1
    cdef Py_ssize_t _send_pieces(self, Stream stream, list pieces) except -1
    cdef bytes _take_pieces(self, Stream stream, Py_ssize_t size)
    cdef Py_ssize_t _put_head(self, Stream stream, list pieces, bint ends) except -1
    cdef _park(self, Stream stream)
    cdef _unpark(self, Stream stream)
    cdef _unpark_all(self)
    cdef _finish(self, Stream stream, list pieces)
    cdef _forget(self, Stream stream)
    cdef _stream_ended(self, Stream stream)
    cdef bytes _render_head(self, Request request)
    cdef bytes _render_start(self, int status)
    cdef bytes _render_index(self, long long index)


cdef bytes _plain(bytes text)
cdef list _fields_of(bytes lines)
