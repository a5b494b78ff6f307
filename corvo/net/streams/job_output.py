"""Live output of running jobs, fanned out to subscribers.

It is kept in memory only: the newest part for each job, until some minutes after the job finishes.
Each piece begins at an offset, in bytes of UTF-8; a subscriber that connects late, or again, names
an offset and gets the output after it. A slow subscriber is cut off and can reconnect. In a cluster
the leader holds the output, because workers talk to it; a new leader begins with none.
"""

from collections import deque
from typing import Final

import msgspec

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.engine.reads import Reads
from corvo.model import ENDED, STATES
from corvo.net.http.open_streams import OpenStreams

_ENCODE: Final = msgspec.json.Encoder().encode
_PIECE_SIZE: Final = 200  # in memory, in addition to its text
_SWEPT: Final = 2  # texts looked at with each piece


class _Text:
    """The buffered output of one job."""

    __slots__ = ("end", "pieces", "readers", "size", "touched_ns")

    def __init__(self) -> None:
        self.pieces: deque[tuple[int, str, int]] = deque()  # offset, text, size
        self.end = 0  # the offset after the last piece
        self.size = 0  # in memory
        self.touched_ns = 0
        self.readers: dict[Request, None] = {}


class JobOutputStreams:
    """The buffered output of all jobs, and its subscribers."""

    def __init__(self, reads: Reads, streams: OpenStreams) -> None:
        self._reads = reads
        self._streams = streams
        self._job_output: dict[str, _Text] = {}  # the one added to last is the last
        self._readers: dict[Request, str] = {}
        self._size = 0

    def add(self, job_id: str, delta: str, now_ns: int) -> None:
        """Append output of a job and send it to its subscribers."""
        text = self._job_output.pop(job_id, None) or _Text()
        self._job_output[job_id] = text
        text.touched_ns = now_ns
        size = len(delta.encode())
        piece = text.end, delta, size
        text.end += size
        text.pieces.append(piece)
        text.size += size + _PIECE_SIZE
        self._size += size + _PIECE_SIZE
        while text.size > limits.STREAM_TEXT_SIZE_MAX + _PIECE_SIZE:
            self._drop_piece(text)
        if text.readers:
            event = _event(job_id, *piece)
            for reader in list(text.readers):
                if reader.unsent_size > limits.STREAM_UNSENT_SIZE_MAX:
                    self._streams.cut(reader)
                else:
                    reader.send(event)
        self._sweep(now_ns)

    def subscribe(self, request: Request, job_id: str, after: int, now_ns: int) -> None:
        """Send the buffered output after an offset, and then new output."""
        text = self._job_output.get(job_id)
        if text is None:
            text = self._job_output[job_id] = _Text()
            text.touched_ns = now_ns
        text.readers[request] = None
        self._readers[request] = job_id
        found = [piece for piece in text.pieces if piece[0] >= after or after > text.end]
        if found:
            whole = "".join(delta for _, delta, _ in found)
            request.send(_event(job_id, found[0][0], whole, text.end - found[0][0]))

    def cut_all(self) -> None:
        """Cut all subscribers: workers send output to another node now, where they reconnect."""
        for reader in list(self._readers):
            self._streams.cut(reader)

    def forget(self, request: Request) -> None:
        """A reader is gone."""
        job_id = self._readers.pop(request, None)
        if job_id is not None:
            text = self._job_output[job_id]
            del text.readers[request]
            if not text.readers and not text.pieces:
                del self._job_output[job_id]

    def _drop_piece(self, text: _Text) -> None:
        _, _, size = text.pieces.popleft()
        text.size -= size + _PIECE_SIZE
        self._size -= size + _PIECE_SIZE

    def _sweep(self, now_ns: int) -> None:
        """Drop the output of jobs that finished some time ago, and the oldest while the total is
        over its limit."""
        for _ in range(_SWEPT):
            job_id, text = next(iter(self._job_output.items()))
            full = self._size > limits.STREAM_TEXTS_SIZE_MAX
            if not full and now_ns - text.touched_ns <= limits.STREAM_TEXT_KEPT_NS:
                return
            job = self._reads.job(job_id)
            if full or job is None or ENDED[job.state]:
                while text.pieces:
                    self._drop_piece(text)
            del self._job_output[job_id]
            if text.pieces or text.readers:
                text.touched_ns = now_ns
                self._job_output[job_id] = text


def keepalive(_request: Request) -> bytes:
    """A comment."""
    return b":keepalive\n\n"


def end_event(reads: Reads, job_id: str) -> bytes:
    """The last event of a stream, or none while the job goes on."""
    job = reads.job(job_id)
    if job is not None and not ENDED[job.state]:
        return b""
    state = "deleted" if job is None else STATES[job.state]
    document = _ENCODE({"job_id": job_id, "state": state})
    return b"event: job.%b\ndata: %b\n\n" % (state.encode(), document)


def _event(job_id: str, offset: int, delta: str, size: int) -> bytes:
    document = _ENCODE({"job_id": job_id, "delta": delta, "offset": offset})
    return b"id: %d\nevent: job.stream\ndata: %b\n\n" % (offset + size, document)
