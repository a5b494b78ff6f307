"""Header blocks of HTTP/2 replies.

Nearly all replies have the same few fields. They are written as literals that no table has to
remember, so that they are the same for every peer and can be prepared once.
"""

from typing import Final

import cython

from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http2.hpack import Encoder, encode_number

# A literal field without indexing: the number of its name in the static table, or the name itself.
_STATUSES: Final = {
    200: b"\x88",
    204: b"\x89",
    304: b"\x8b",
    400: b"\x8c",
    404: b"\x8d",
    500: b"\x8e",
}
_STATUS: Final = b"\x08\x03%d"
_DATE: Final = b"\x0f\x12"
_NOSNIFF: Final = b"\x00\x16x-content-type-options\x07nosniff"
_REQUEST_ID: Final = b"\x00\x0cx-request-id"
_TIMING: Final = b"\x00\x0dserver-timing%cproc;dur=%d"
_INDEX: Final = b"\x00\x0dx-corvo-index"
_TYPE: Final = b"\x0f\x10"
_LENGTH: Final = b"\x0f\x0d"
_JSON_TYPE: Final = _TYPE + b"\x10application/json"
_JSON: Final = b"application/json"

_SIZES: Final = tuple(bytes((n,)) for n in range(127))
# Fields with numbers below this are prepared.
_READY: Final = 1000
# The decimal point and three digits follow.
_TIMINGS: Final = tuple(_TIMING % (13 + len(str(n)), n) for n in range(_READY))
_THOUSANDTHS: Final = tuple(b".%03d" % n for n in range(1000))
_LENGTHS: Final = tuple(_LENGTH + bytes((len(str(n)),)) + b"%d" % n for n in range(_READY))
_JSON_LENGTHS: Final = tuple(_JSON_TYPE + line for line in _LENGTHS)


def _plain(text: bytes) -> bytes:
    """A string literal without Huffman coding: its length, then the text."""
    size: cython.Py_ssize_t = len(text)
    if size < 127:
        return cython.cast(bytes, _SIZES[size]) + text
    return encode_number(len(text), 0x7F, 0) + text


class ReplyHeads:
    """Encodes the header blocks of one connection, in the order in which they are sent."""

    def __init__(self, context: H1Context) -> None:
        self._context = context
        self._encoder = Encoder()
        self._date = b""
        self._starts: dict[int, bytes] = {}  # fields up to the request id by status, for one date
        self._index = -1
        self._index_field = b""

    def set_table_size(self, size: cython.longlong) -> None:
        """Apply SETTINGS_HEADER_TABLE_SIZE of the peer."""
        self._encoder.set_size(size)

    def render(self, request: Request) -> bytes:
        """The header block of a reply."""
        date: bytes = self._context._get_date(request._replied_ns)
        if date is not self._date:
            self._date = date
            self._starts = {}
        start = self._starts.get(request._status)
        if start is None:
            start = self._starts[request._status] = self._render_start(request._status)
        took_us: cython.longlong = max(0, request._replied_ns - request.arrived_ns) // 1000
        took_ms: cython.longlong = took_us // 1000
        given: bytes = request.request_id
        pieces = [
            self._encoder.start_block(),
            start,
            _plain(given),
            _TIMINGS[took_ms] if took_ms < _READY else _TIMING % (13 + len(str(took_ms)), took_ms),
            _THOUSANDTHS[took_us % 1000],
        ]
        if request._index >= 0:
            pieces.append(self._render_index(request._index))
        size: cython.Py_ssize_t = len(request._reply_body)
        if request._pieces is not None:
            pieces.append(_TYPE + _plain(request._reply_type))
        elif request._status == 204 or request._status == 304:
            pass  # no body, hence no length either
        elif size and size < _READY and request._reply_type == _JSON:
            pieces.append(_JSON_LENGTHS[size])
        else:
            if size:
                pieces.append(_TYPE + _plain(request._reply_type))
            pieces.append(_LENGTH + _plain(b"%d" % size))
        if request._reply_headers:
            pieces.append(self._encoder.encode(_fields_of(request._reply_headers)))
        return b"".join(pieces)

    def render_trailers(self, lines: bytes) -> bytes:
        """The header block of a trailer section, from header lines."""
        return self._encoder.start_block() + self._encoder.encode(_fields_of(lines))

    def _render_start(self, status: cython.int) -> bytes:
        known = _STATUSES.get(status) or _STATUS % status
        return b"".join((known, _DATE, _plain(self._date), _NOSNIFF, _REQUEST_ID))

    def _render_index(self, index: cython.longlong) -> bytes:
        """The field X-Corvo-Index; all replies of a batch have the same index."""
        if index != self._index:
            self._index = index
            self._index_field = _INDEX + _plain(b"%d" % index)
        return self._index_field


def _fields_of(lines: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values of header lines."""
    pairs = [line.split(b": ", 1) for line in lines.split(b"\r\n") if line]
    return [(name.lower(), value) for name, value in pairs]
