from corvo._fast.http.token_bucket cimport TokenBucket
from corvo._fast.http2.frames cimport FrameReader, frame, u32_frame
from corvo._fast.http2.streams cimport ReplyStreams, Stream

cdef int _PREFACE
cdef int _OPEN
cdef int _STOPPED


cdef class Control(ReplyStreams):
    cdef object _limits
    cdef int _phase, _strikes, _own_resets_left
    cdef bint _ended, _more
    cdef bytes _rest
    cdef FrameReader _reader
    cdef long long _read_ns, _opened_ns, _last_id, _accepts_max
    cdef long long _settings_due_ns, _ping_due_ns, _leave_due_ns, _pinged_ns, _block_ns
    cdef long long _block_stream
    cdef dict _late
    cdef TokenBucket _resets, _own_resets, _settings, _pings, _priorities, _updates, _slips

    cdef _take_update(self)
    cdef _take_reset(self)
    cdef _take_ping(self, bytes data)
    cdef _take_settings(self, bytes data)
    cdef _apply_settings(self, bytes data, Py_ssize_t start, Py_ssize_t end)
    cdef _resize_windows(self, long long size)
    cdef _slip(self)
    cdef _take_late(self, long long stream_id)
    cdef _remember(self, long long stream_id)
    cdef _reset(self, Stream stream, int code, str reason)
    cdef _send_reset(self, long long stream_id, int code, str reason)
    cdef _check_parked(self, long long now_ns)
    cdef _check_peer(self, long long now_ns)
    cdef _leave(self)
    cdef _give_up(self, fault)
    cdef _close(self)
    cdef _forget_all(self)
