"""What the two ends of an HTTP/2 connection tell each other beside requests and replies.

Settings, windows, resets, pings and good-byes; and the budgets. Each thing that a peer can do
without end, at little cost to itself, has one, and who exceeds it is told to calm down and loses
the connection. Slips that cannot happen by accident are faults of the connection too, not of one
stream: a reset is an answer that somebody could farm.
"""

from typing import Final

import cython

from corvo._fast.http.token_bucket import TokenBucket
from corvo._fast.http2.frames import (
    ACK,
    CANCEL,
    ENABLE_PUSH,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_MAX,
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    NO_ERROR,
    NO_RFC7540_PRIORITIES,
    PING,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    SETTINGS_TIMEOUT,
    STREAM_CLOSED,
    WINDOW_MAX,
    WINDOW_UPDATE,
    ConnectionFault,
    FrameReader,
    frame,
    goaway_frame,
    settings_frame,
    u32_frame,
)
from corvo._fast.http2.hpack import TABLE_SIZE_MAX
from corvo._fast.http2.streams import ReplyStreams, Stream

# Phases of a connection, as `corvo._fast.http2.connection` describes them.
_PREFACE, _OPEN, _STOPPED = 0, 2, 3

_STILL_THERE: Final = b"corvo-up"
_LEAVING: Final = b"corvo-go"
_WINDOW_DEFAULT: Final = 65_535


class Control(ReplyStreams):
    """The middle of a connection: `corvo._fast.http2.connection` reads the requests."""

    def __init__(self, context, peer="", on_output=None):
        ReplyStreams.__init__(self, context, peer, on_output)
        http2 = self._limits = context.http2
        now_ns = self._idle_ns
        self._phase = _PREFACE
        self._ended = False
        self._read_ns = now_ns
        self._opened_ns = now_ns
        # Input: bytes not looked at yet, and whether there may be a whole frame in them.
        self._rest = b""
        self._more = False
        self._reader = FrameReader()
        # The stream whose header block is being read, 0 = none, and since when.
        self._block_stream = 0
        self._block_ns = 0
        self._last_id = 0
        self._accepts_max = WINDOW_MAX  # the last stream that is served
        self._late = {}  # streams that we ended and of which frames may be under way
        # What is due from the peer, by when: 0 = nothing.
        self._settings_due_ns = now_ns + http2.settings_wait_ns
        self._ping_due_ns = 0
        self._leave_due_ns = 0
        # Budgets.
        self._resets = TokenBucket(http2.resets_burst, http2.resets_rate, now_ns)
        self._own_resets = TokenBucket(http2.own_resets_burst, http2.own_resets_rate, now_ns)
        self._own_resets_left = http2.own_resets_max
        self._settings = TokenBucket(http2.settings_burst, http2.settings_rate, now_ns)
        self._pings = TokenBucket(http2.pings_burst, http2.pings_rate, now_ns)
        self._priorities = TokenBucket(http2.priorities_burst, 0, now_ns)
        self._updates = TokenBucket(http2.updates_burst, 0, now_ns)
        self._slips = TokenBucket(http2.slips_burst, http2.slips_rate, now_ns)
        self._strikes = 0
        self._pinged_ns = 0
        self._push(
            settings_frame(
                (
                    (HEADER_TABLE_SIZE, TABLE_SIZE_MAX),
                    (MAX_CONCURRENT_STREAMS, http2.streams_max),
                    (INITIAL_WINDOW_SIZE, http2.stream_window_size),
                    (MAX_FRAME_SIZE, FRAME_SIZE_MAX),
                    (MAX_HEADER_LIST_SIZE, context.head_size_max),
                    (NO_RFC7540_PRIORITIES, 1),
                )
            )
            + u32_frame(WINDOW_UPDATE, 0, http2.window_size - _WINDOW_DEFAULT)
        )

    def drain(self):
        """Answer what is in flight and what is under way to us, then close.

        A peer learns from a first GOAWAY that it should go elsewhere; what it sent before it knew
        has arrived when it has answered the ping behind that.
        """
        if self._phase == _PREFACE:
            self._close()
        elif self._phase != _STOPPED and not self._leave_due_ns:
            self._leave_due_ns = self.context.monotonic() + self._limits.leave_wait_ns
            self._push(goaway_frame(WINDOW_MAX, NO_ERROR, "") + frame(PING, 0, 0, _LEAVING))

    def _take_update(self):
        reader: FrameReader = self._reader
        if self._updates_earned:
            self._updates.add(self._updates_earned * self._limits.updates_per_data)
            self._updates_earned = 0
        if not self._updates.take(self._read_ns):
            raise too_many("window_updates")
        if reader.stream_id == 0:
            self._window += reader.value
            if self._window > WINDOW_MAX:
                raise _too_wide()
            if self._parked:
                self._unpark_all()
            return
        stream: Stream = self._streams.get(reader.stream_id)
        if stream is not None:
            stream.window += reader.value
            if stream.window > WINDOW_MAX:
                self._reset(stream, FLOW_CONTROL_ERROR, "windows")
            elif stream.window > 0:
                self._unpark(stream)
        elif reader.stream_id > self._last_id:
            raise idle_stream()

    def _take_reset(self):
        reader: FrameReader = self._reader
        if not self._resets.take(self._read_ns):
            raise too_many("resets")
        stream: Stream = self._streams.get(reader.stream_id)
        if stream is not None:
            stream.open = False
            self._forget(stream)
        elif reader.stream_id > self._last_id:
            raise idle_stream()
        else:
            self._late.pop(reader.stream_id, None)

    def _take_ping(self, data):
        reader: FrameReader = self._reader
        payload = data[reader.start : reader.end]
        if reader.flags & ACK:
            if payload == _LEAVING and self._leave_due_ns:
                self._leave()
            elif payload != _STILL_THERE or not self._ping_due_ns:
                self._slip()
            self._ping_due_ns = 0
            return
        limits = self._limits
        if not self._pings.take(self._read_ns):
            raise too_many("pings")
        if not self._streams:
            if self._pinged_ns and self._read_ns - self._pinged_ns < limits.ping_spacing_ns:
                self._strikes += 1
                if self._strikes > limits.ping_strikes:
                    raise too_many("pings")
            self._pinged_ns = self._read_ns
        self._push(frame(PING, ACK, 0, payload))

    def _take_settings(self, data):
        reader: FrameReader = self._reader
        if reader.flags & ACK:
            if not self._settings_due_ns:
                self._slip()
            self._settings_due_ns = 0
            return
        if not self._settings.take(self._read_ns):
            raise too_many("settings")
        if reader.size > self._limits.settings_entries_max * 6:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many settings in one frame", "settings")
        self._apply_settings(data, reader.start, reader.end)
        self._push(frame(SETTINGS, ACK, 0, b""))

    def _apply_settings(self, data, start, end):
        for at in range(start, end, 6):
            key = int.from_bytes(data[at : at + 2], "big")
            value = int.from_bytes(data[at + 2 : at + 6], "big")
            if key == INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif key == HEADER_TABLE_SIZE:
                self._encoder.set_size(value)
            elif key == ENABLE_PUSH:
                if value > 1:
                    raise ConnectionFault(PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
            elif key == MAX_FRAME_SIZE and not FRAME_SIZE_MAX <= value < 1 << 24:
                raise ConnectionFault(PROTOCOL_ERROR, "a MAX_FRAME_SIZE that cannot be")

    def _resize_windows(self, size):
        """A new first window; those of the streams there are change by as much."""
        if size > WINDOW_MAX:
            raise _too_wide()
        stream: Stream
        for stream in self._streams.values():
            stream.window += size - self._initial_window
            if stream.window > WINDOW_MAX:
                raise _too_wide()
        self._initial_window = size
        self._unpark_all()

    def _slip(self):
        """Something odd that does no harm if it stays rare."""
        if not self._slips.take(self._read_ns):
            raise too_many("slips")

    # Ending streams.

    def _take_late(self, stream_id):
        """A frame for a stream that is not there: fine if it is us who ended it."""
        if stream_id > self._last_id:
            raise idle_stream()
        if stream_id not in self._late:
            raise after_the_end()
        self._slip()

    def _remember(self, stream_id):
        self._late[stream_id] = None
        if len(self._late) > self._limits.late_max:
            del self._late[next(iter(self._late))]

    def _reset(self, stream, code, reason):
        self._forget(stream)
        self._send_reset(stream.id, code, reason)

    def _send_reset(self, stream_id, code, reason):
        """End a stream for a reason that lies with the peer, which must not be frequent."""
        self.context.abuse_counters.count(reason)
        self._own_resets_left -= 1
        if self._own_resets_left < 0 or not self._own_resets.take(self._read_ns):
            raise too_many("faulty_requests")
        self._remember(stream_id)
        self._push(u32_frame(RST_STREAM, stream_id, code))

    # Time.

    def _check_parked(self, now_ns):
        limits = self._limits
        stream: Stream
        for stream in list(self._parked.values()):
            waited_ns: cython.longlong = now_ns - stream.parked_ns
            if waited_ns > self.context.write_stall_ns:
                self._reset(stream, CANCEL, "unread_replies")
            elif waited_ns > limits.small_data_wait_ns and stream.window > 0 and self._window > 0:
                stream.urgent = True
                self._unpark(stream)

    def _check_peer(self, now_ns):
        """Whether the peer is there, does what it owes, and still has something to say."""
        limits = self._limits
        if self._block_stream and now_ns - self._block_ns > self.context.head_wait_ns:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a slow header block", "header_block")
        if self._settings_due_ns and now_ns > self._settings_due_ns:
            raise ConnectionFault(SETTINGS_TIMEOUT, "the settings were not acknowledged", "silence")
        if self._leave_due_ns and now_ns > self._leave_due_ns:
            self._leave()
        elif self._ping_due_ns:
            if now_ns > self._ping_due_ns:
                raise ConnectionFault(NO_ERROR, "the peer does not answer", "silence")
        elif not self._streams:
            if now_ns - self._idle_ns > self.context.keep_alive_idle_ns:
                self._leave()
        elif now_ns - self._read_ns > limits.ping_idle_ns:
            self._ping_due_ns = now_ns + limits.ping_wait_ns
            self._push(frame(PING, 0, 0, _STILL_THERE))

    # Closing.

    def _leave(self):
        """Serve no stream behind those that are there."""
        self._leave_due_ns = 0
        if self._accepts_max == WINDOW_MAX:
            self._accepts_max = self._last_id
            self._push(goaway_frame(self._last_id, NO_ERROR, ""))
        if not self._streams:
            self._close()

    def _give_up(self, fault):
        """End everything, and say why."""
        self.context.abuse_counters.count(fault.reason)
        self._close()
        self._forget_all()
        last = goaway_frame(self._last_id, fault.code, fault.text)
        self._control.append(last)
        self._control_size += len(last)
        self.unsent_size += len(last)
        self._announce()

    def _close(self):
        self._phase = _STOPPED
        self._rest = b""
        self._more = False
        self.want_close = True
        self._announce()

    def _forget_all(self):
        stream: Stream
        for stream in list(self._streams.values()):
            self._forget(stream)


def too_many(reason):
    """More of what this reason counts than the budget allows."""
    return ConnectionFault(ENHANCE_YOUR_CALM, f"too many {reason.replace('_', ' ')}", reason)


def _too_wide():
    return ConnectionFault(FLOW_CONTROL_ERROR, "a window wider than 2**31 - 1", "windows")


def idle_stream():
    """A stream that the peer has yet to open."""
    return ConnectionFault(PROTOCOL_ERROR, "a frame for a stream that was never opened")


def after_the_end():
    """A stream of which nothing more may come."""
    return ConnectionFault(STREAM_CLOSED, "a frame behind the end of its stream")
