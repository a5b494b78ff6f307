from corvo._fast.http.exchange cimport H1Context, HttpConn, Request
from corvo._fast.http.token_bucket cimport TokenBucket
from corvo._fast.http2.frames cimport FrameReader, frame, frame_head, u32_frame
from corvo._fast.http2.headers cimport check_trailers, read_head
from corvo._fast.http2.hpack cimport Decoder
from corvo._fast.http2.reply_head cimport ReplyHeads

# Phases of a connection.
cdef int _AWAIT_PREFACE
cdef int _AWAIT_SETTINGS
cdef int _RUNNING
cdef int _STOPPED

# States of a stream, and the events that change them.
cdef int _IDLE
cdef int _OPEN
cdef int _HALF_CLOSED_LOCAL
cdef int _HALF_CLOSED_REMOTE
cdef int _CLOSED
cdef int _GOT_HEADERS
cdef int _GOT_END
cdef int _SENT_END
cdef int _RESET
cdef int _INVALID
cdef bytes _NEXT

# How the body of a request is handled.
cdef int _COLLECT
cdef int _STREAM
cdef int _DISCARD

# Frames.
cdef int _DATA
cdef int _HEADERS
cdef int _WINDOW_UPDATE
cdef int _CONTINUATION
cdef int _END_HEADERS
cdef int _END_STREAM
cdef Py_ssize_t _SIZE_MAX
cdef Py_ssize_t _TURN_SIZE
cdef Py_ssize_t _HEAD_SIZE


cdef class Stream:
    cdef unsigned int id
    cdef Request request
    cdef int state
    # Receiving: flow control.
    cdef Py_ssize_t receive_window, consumed, tiny_charge
    # Receiving: the body.
    cdef int body_mode
    cdef bytearray body
    cdef Py_ssize_t expected, received, held
    cdef bint handed_over
    cdef long long started_ns, read_ns
    # Sending.
    cdef long long send_window
    cdef bint head_sent
    cdef Py_ssize_t sent
    cdef bint drained
    cdef long long parked_ns
    cdef bint urgent

    cdef advance(self, int event)


cdef class H2Conn(HttpConn):
    cdef object _limits
    # Connection.
    cdef int _phase
    cdef long long _opened_ns, _read_ns
    # Input.
    cdef FrameReader _reader
    cdef bytes _rest
    cdef bint _more, _ended
    cdef Py_ssize_t _frames_max
    cdef list _ready
    # The header block being read.
    cdef Decoder _decoder
    cdef list _block
    cdef Py_ssize_t _block_size, _block_empty
    cdef long long _block_stream
    cdef bint _block_ends_stream
    cdef long long _block_ns
    # Streams.
    cdef dict _streams
    cdef Py_ssize_t _streams_max
    cdef long long _last_id, _accepts_max
    cdef dict _late
    # Receiving bodies.
    cdef Py_ssize_t _receive_window, _receive_window_max, _stream_window, _consumed
    cdef dict _receiving
    cdef list _continues
    # Sending.
    cdef ReplyHeads _heads
    cdef list _control
    cdef Py_ssize_t _control_size, _control_max
    cdef object _ring
    cdef dict _parked
    cdef bint _announced
    cdef long long _send_window, _initial_window
    cdef Py_ssize_t _small_data
    # Due from the peer.
    cdef long long _settings_due_ns, _ping_due_ns, _leave_due_ns
    # Budgets.
    cdef TokenBucket _resets, _own_resets, _settings, _pings, _priorities, _updates, _slips
    cdef int _own_resets_left, _strikes
    cdef long long _pinged_ns, _updates_earned
    cdef Py_ssize_t _priorities_per_stream, _empty_left, _tiny_left, _tiny_data

    # The interface of the server.
    cpdef adopt(self, Request request, bytes settings)
    # Reading frames.
    cdef Py_ssize_t _read_preface(self, bytes data) except -1
    cdef _take_frame(self, bytes data)
    # Header blocks.
    cdef _take_headers(self, bytes data)
    cdef _take_continuation(self, bytes data)
    cdef _end_block(self, unsigned int stream_id, bytes block)
    cdef _open(self, unsigned int stream_id, list fields)
    # Bodies of requests.
    cdef str _begin_body(self, Stream stream)
    cdef _take_data(self, bytes data)
    cdef _charge(self, Stream stream, Py_ssize_t length)
    cdef _open_window(self, Stream stream)
    cdef str _add_data(self, Stream stream, bytes data)
    cdef str _complete(self, Stream stream)
    cdef _hand_over(self, Stream stream)
    cdef _send_continues(self)
    cdef _refuse(self, Stream stream, error, str reason)
    cdef _drop_body(self, Stream stream)
    cdef _body_too_large(self)
    # Control frames.
    cdef _take_update(self)
    cdef _take_reset(self)
    cdef _take_ping(self, bytes data)
    cdef _take_settings(self, bytes data)
    cdef _apply_settings(self, bytes data, Py_ssize_t start, Py_ssize_t end)
    cdef _resize_windows(self, long long size)
    cdef _slip(self)
    # Sending.
    cdef _announce(self)
    cdef _push(self, bytes frame)
    cdef _wake(self, Request request)
    cdef Py_ssize_t _send_turn(self, Stream stream, list[bytes] pieces) except -1
    cdef Py_ssize_t _send_pieces(self, Stream stream, list[bytes] pieces) except -1
    cdef bytes _take_pieces(self, Stream stream, Py_ssize_t size)
    cdef Py_ssize_t _put_head(self, Stream stream, list[bytes] pieces, bint ends) except -1
    cdef _count_sent(self, Stream stream, Py_ssize_t size)
    cdef _park(self, Stream stream)
    cdef _unpark(self, Stream stream)
    cdef _unpark_all(self)
    # Ending streams.
    cdef _finish(self, Stream stream, list[bytes] pieces)
    cdef _forget(self, Stream stream)
    cdef _release(self, Stream stream)
    cdef _take_late(self, long long stream_id)
    cdef _remember(self, long long stream_id)
    cdef _reset(self, Stream stream, int code, str reason)
    cdef _send_reset(self, long long stream_id, int code, str reason)
    # Time.
    cdef _check_parked(self, long long now_ns)
    cdef _check_bodies(self, long long now_ns)
    cdef _check_peer(self, long long now_ns)
    # Closing.
    cdef _finish_input(self)
    cdef _leave(self)
    cdef _give_up(self, fault)
    cdef _close(self)
    cdef _forget_all(self)
