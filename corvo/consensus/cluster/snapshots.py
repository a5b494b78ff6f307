"""Snapshots: copies of the state store for followers whose next log entries are trimmed.

A snapshot is a compact copy of the state store as of one flush. A separate process creates it
(`corvo.storage.backup`), so that the event loop does not wait. Its meta row contains the index of
its last entry. All rows of the state store are replicated, except the outbox of the node that
created the snapshot (`corvo.storage.records.outbox`); the receiver removes it.

<data-dir>/outgoing the snapshot to send <data-dir>/state.<n + 1>/received-<digest> a snapshot being
received, in the directory of the next generation of the state store (`corvo.storage.generations`)

It is sent on its own channel (`peer_connection`), in frames with a checksum:

    sender                                       receiver
    OFFER   format, size, digest, message  ->
                                           <-    RESUME  offset:8
    CHUNK   offset:8 data                  ->            (equal sizes, except the last)
                                           <-    DONE    empty, or the reason of a refusal

`message` is the SNAPSHOT message of the Raft core: index, term and members of the snapshot, and the
data for its reply. The receiver passes it to its core when the snapshot is complete, on disk and
verified. After a broken connection the sender repeats the offer and continues at the offset of the
receiver. The rate is limited. A newer offer of the same sender replaces a transfer in progress; an
offer of an older term is refused.

A snapshot is deleted after its last transfer, because a later transfer would start with an old
state. An unused snapshot is deleted after 30 seconds.

Installation is synchronous and short, because the bytes are already on disk. After a crash at any
step, a start opens the old or the new state store according to CURRENT, and removes the rest of the
other one:

    1. rename the received file to data.mdb; flush its directory and the data directory
    2. write and flush CURRENT.new
    3. rename it to CURRENT; flush the data directory
    4. open the new state store; remove the old one
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from corvo._fast.codec.layouts import CodecError, decode_fields, encode_fields
from corvo.consensus.cluster.peer_connection import Channel
from corvo.consensus.cluster.peer_protocol import CHUNK, DONE, OFFER, RESUME
from corvo.consensus.raft.messages import (
    SNAPSHOT,
    Message,
    SnapshotMeta,
    decode_message,
    encode_message,
)
from corvo.errors import StorageError
from corvo.limits import (
    DISK_FREE_REFUSE,
    SECOND_NS,
    SNAPSHOT_CHUNK_SIZE,
    SNAPSHOT_RATE_MAX,
    SNAPSHOT_UNWANTED_NS,
)
from corvo.platform import failpoints
from corvo.platform.clock import Clock
from corvo.platform.files import SYNC_DATA, Files
from corvo.storage import backup, generations
from corvo.storage.data_dir import sync_directory
from corvo.storage.lmdb import DATA_FILE
from corvo.storage.records.meta import FORMAT

logger = logging.getLogger(__name__)

OUTGOING: Final = "outgoing"
RECEIVED: Final = "received-"
_OFFER: Final = "uubb"
_OFFSET_SIZE: Final = 8
_DIGEST_SIZE: Final = 32
_TRIES: Final = 5  # consecutive attempts without progress
_RETRY_S: Final = 0.2
_PREPARE_AGAIN_NS: Final = 5 * SECOND_NS


class Log(Protocol):
    """The log, as far as snapshots need it."""

    def offer(self, index: int, term: int) -> None:
        """Announce a snapshot at this applied entry, ready to be sent."""

    def withdraw_offer(self) -> None:
        """Withdraw the announced snapshot, which is deleted."""

    def snapshot_sent(self, node_id: str, ok: bool) -> None:
        """Handle the end of a transfer; after success the peer confirms the snapshot itself."""

    def take_message(self, message: Message) -> None:
        """Process a SNAPSHOT message after its data has been received."""


class Offer(NamedTuple):
    """Offer of a snapshot: its file and its message."""

    format: int
    size: int
    digest: bytes
    message: bytes


class _Copy:
    """A snapshot that is ready to be sent."""

    def __init__(self, index: int, term: int, size: int, digest: bytes) -> None:
        self.index = index
        self.term = term
        self.size = size
        self.digest = digest
        self.users = 0


class _SnapshotRefused(Exception):
    """The receiver refuses the snapshot; the text is sent to the sender."""


class Progress(NamedTuple):
    """Progress of a transfer, in bytes."""

    offset: int
    size: int


class Snapshots:
    """Creates, sends, receives and installs snapshots."""

    def __init__(
        self,
        data_dir: str,
        node_id: str,
        log: Log,
        open_channel: Callable[[str], Awaitable[Channel]],
        clock: Clock,
        files: Files | None = None,
        rate_max: int = SNAPSHOT_RATE_MAX,
        cluster_id: str = "",
    ) -> None:
        """`node_id` is the id of this node in messages.

        Snapshots of another cluster than `cluster_id` are refused."""
        self._cluster_id = cluster_id
        self.sending: dict[str, Progress] = {}  # by node
        self.receiving: Progress | None = None
        self.prepared = 0
        self.sent = 0
        self.received = 0
        self.installed = 0
        self.failed = 0  # failed transfers to other nodes
        self._data_dir = data_dir
        self._node_id = node_id
        self._log = log
        self._open_channel = open_channel
        self._clock = clock
        self._files = files or Files()
        self._rate_max = rate_max
        self._copy: _Copy | None = None
        self._preparing = False
        self._prepare_at_ns = 0  # earliest time of the next attempt after a failure
        self._incoming: tuple[Message, asyncio.Task[None]] | None = None
        self._received: list[tuple[int, int, str]] = []  # index, term, path; not installed yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwanted: asyncio.TimerHandle | None = None
        self._closed = False

    # ---- start and stop ----

    def clean(self) -> None:
        """Remove older generations and outgoing snapshots of an earlier run.

        A partly received snapshot stays, so that its transfer can continue. Call this when the
        state store is open."""
        files, root = self._files, self._data_dir
        name = generations.current(Path(root))
        keep = (name, generations.following(name))
        needed = [path for _, _, path in self._received]
        for other in files.names(root):
            if not generations.is_generation(other):
                continue
            for file in files.names(f"{root}/{other}"):
                path = f"{root}/{other}/{file}"
                obsolete = other not in keep or (other == name) == file.startswith(RECEIVED)
                if obsolete and path not in needed:
                    files.unlink(path)
            if other not in keep:
                files.remove_directory(f"{root}/{other}")
        if self._copy is None and not self._preparing and OUTGOING in files.names(root):
            files.unlink(f"{root}/{OUTGOING}")

    async def close(self) -> None:
        """Stop all transfers."""
        self._closed = True
        if self._unwanted is not None:
            self._unwanted.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- creation ----

    def prepare(self) -> None:
        """Start to create a snapshot and announce it to the log.

        Does nothing while one is being created, or shortly after a failure."""
        if self._preparing or self._clock.monotonic_ns() < self._prepare_at_ns:
            return
        self._preparing = True
        self._spawn(self._prepare())

    async def _prepare(self) -> None:
        root = self._data_dir
        state = f"{root}/{generations.current(Path(root))}"
        try:
            found = await _run("copy", state, f"{root}/{OUTGOING}.new")
            # Not flushed: it is not needed after a crash.
            self._files.rename(f"{root}/{OUTGOING}.new", f"{root}/{OUTGOING}")
        except (OSError, StorageError) as error:
            logger.error("cannot create a snapshot: %s", error)
            self._prepare_at_ns = self._clock.monotonic_ns() + _PREPARE_AGAIN_NS
            return
        finally:
            self._preparing = False
        digest = bytes.fromhex(found["digest"])
        copy = self._copy = _Copy(found["index"], found["term"], found["size"], digest)
        self.prepared += 1
        logger.info("snapshot at entry %d is ready: %d bytes", copy.index, copy.size)
        self._log.offer(copy.index, copy.term)
        loop = asyncio.get_running_loop()
        self._unwanted = loop.call_later(SNAPSHOT_UNWANTED_NS / SECOND_NS, self._drop, copy)

    def _drop(self, copy: _Copy) -> None:
        """Delete a snapshot unless a transfer uses it."""
        if copy is self._copy and not copy.users:
            self._copy = None
            self._log.withdraw_offer()
            self._files.unlink(f"{self._data_dir}/{OUTGOING}")

    # ---- sending ----

    def send(self, message: Message) -> None:
        """Send the snapshot that the message names, then the message.

        Calls `Log.snapshot_sent` at the end."""
        assert message.type == SNAPSHOT and message.snapshot is not None
        self._spawn(self._send(message, message.snapshot))

    async def _send(self, message: Message, meta: SnapshotMeta) -> None:
        copy = self._copy
        ok = False
        try:
            if copy is not None and (copy.index, copy.term) == (meta.index, meta.term):
                ok = await self._send_copy(message, copy)
        except OSError as error:
            logger.error("cannot read the snapshot: %s", error)
        finally:
            if not self._closed:
                self.sent += ok
                self.failed += not ok
                self._log.snapshot_sent(message.to_id, ok)

    async def _send_copy(self, message: Message, copy: _Copy) -> bool:
        fd = self._files.open(f"{self._data_dir}/{OUTGOING}")
        copy.users += 1
        try:
            return await self._try_to_send(message, copy, fd)
        finally:
            self.sending.pop(message.to_id, None)
            self._files.close(fd)
            copy.users -= 1
            if not self._closed:
                self._drop(copy)

    async def _try_to_send(self, message: Message, copy: _Copy, fd: int) -> bool:
        """Send the snapshot; retry as long as attempts make progress."""
        offer = Offer(FORMAT, copy.size, copy.digest, encode_message(message))
        node_id = message.to_id
        reached = -1
        tries = 0
        while tries < _TRIES:
            channel: Channel | None = None
            try:
                channel = await self._open_channel(node_id)
                refusal = await self._stream(channel, offer, fd)
                if refusal:
                    logger.warning("node %s refuses the snapshot: %s", node_id, refusal)
                return not refusal
            except OSError as error:
                logger.info("cannot send a snapshot to node %s, trying again: %s", node_id, error)
            finally:
                if channel is not None:
                    channel.close()
            progress = self.sending.get(node_id)
            tries = 0 if progress is not None and progress.offset > reached else tries + 1
            reached = max(reached, 0 if progress is None else progress.offset)
            await asyncio.sleep(_RETRY_S)
        return False

    async def _stream(self, channel: Channel, offer: Offer, fd: int) -> str:
        """Make one attempt; return the receiver's reason of refusal, or ""."""
        await channel.send(OFFER, encode_fields(_OFFER, tuple(offer)))
        kind, payload = await channel.receive()
        if kind == RESUME and len(payload) == _OFFSET_SIZE:
            offset = int.from_bytes(payload, "big")
            due_ns = 0
            while offset < offer.size:
                # Read on the event loop: the file is new and in the page cache.
                data = self._files.pread(fd, SNAPSHOT_CHUNK_SIZE, offset)
                if not data:
                    raise OSError("the snapshot file is shorter than before")
                await channel.send(CHUNK, offset.to_bytes(_OFFSET_SIZE, "big") + data)
                offset += len(data)
                self.sending[channel.node_id] = Progress(offset, offer.size)
                now_ns = self._clock.monotonic_ns()
                due_ns = max(due_ns, now_ns) + len(data) * SECOND_NS // self._rate_max
                await asyncio.sleep((due_ns - now_ns) / SECOND_NS)
            kind, payload = await channel.receive()
        if kind != DONE:
            raise ConnectionResetError(f"unexpected frame of type {kind}")
        return payload.decode("utf-8", "replace")

    # ---- receiving ----

    def accept(self, channel: Channel) -> None:
        """Handle a channel that a peer opened to send a snapshot."""
        if self._closed:
            channel.close()
        else:
            self._spawn(self._accept(channel))

    async def _accept(self, channel: Channel) -> None:
        try:
            offer, message = await self._take_offer(channel)
            await self._make_room_for(message)
            task = asyncio.current_task()
            assert task is not None
            self._incoming = (message, task)
            await self._receive(channel, offer)
            await channel.send(DONE)
        except _SnapshotRefused as error:
            logger.warning("snapshot from node %s refused: %s", channel.node_id, error)
            await _send_refusal(channel, str(error))
        except OSError as error:
            logger.info("snapshot from node %s interrupted: %s", channel.node_id, error)
        finally:
            if self._incoming is not None and self._incoming[1] is asyncio.current_task():
                self._incoming = None
                self.receiving = None
            channel.close()

    async def _take_offer(self, channel: Channel) -> tuple[Offer, Message]:
        kind, payload = await channel.receive()
        try:
            if kind != OFFER:
                raise _SnapshotRefused(f"a frame of type {kind} is not an offer")
            offer = Offer._make(decode_fields(_OFFER, payload))
            message = decode_message(offer.message)
        except CodecError as error:
            raise _SnapshotRefused(f"invalid offer: {error}") from None
        if message.type != SNAPSHOT or len(offer.digest) != _DIGEST_SIZE:
            raise _SnapshotRefused("the offer has no snapshot message")
        if message.from_id != channel.node_id or message.to_id != self._node_id:
            raise _SnapshotRefused(f"the offer is from {message.from_id!r} to {message.to_id!r}")
        if offer.format != FORMAT:
            raise _SnapshotRefused(
                f"state store format {offer.format}; this version reads format {FORMAT}"
            )
        return offer, message

    async def _make_room_for(self, message: Message) -> None:
        """Receive one snapshot at a time: the latest offer of the newest leader."""
        while self._incoming is not None:
            other, task = self._incoming
            if other.term > message.term:
                raise _SnapshotRefused("there is a newer leader")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _receive(self, channel: Channel, offer: Offer) -> None:
        name = generations.following(generations.current(Path(self._data_dir)))
        directory = f"{self._data_dir}/{name}"
        path = f"{directory}/{RECEIVED}{offer.digest.hex()}"
        fd, offset = self._open_received(directory, path, offer.size)
        try:
            await channel.send(RESUME, offset.to_bytes(_OFFSET_SIZE, "big"))
            while offset < offer.size:
                self.receiving = Progress(offset, offer.size)
                kind, payload = await channel.receive()
                data = payload[_OFFSET_SIZE:]
                if kind != CHUNK or int.from_bytes(payload[:_OFFSET_SIZE], "big") != offset:
                    raise _SnapshotRefused(f"a frame of type {kind} is not the chunk at {offset}")
                if not data or offset + len(data) > offer.size:
                    raise _SnapshotRefused(
                        f"a chunk of {len(data)} bytes at {offset} of {offer.size}"
                    )
                self._write(fd, data, offset)
                offset += len(data)
        finally:
            self._files.close(fd)
        self.receiving = Progress(offset, offer.size)
        message = decode_message(offer.message)
        meta = message.snapshot
        assert meta is not None, "a SNAPSHOT message has it"
        await self._check(path, offer, meta)
        self.received += 1
        # Keep the previous snapshot, which may be about to be installed.
        self._received = [*self._received[-1:], (meta.index, meta.term, path)]
        self._log.take_message(message)

    def _open_received(self, directory: str, path: str, size: int) -> tuple[int, int]:
        """Open the file to write to; return it and the size already received."""
        files = self._files
        files.make_directory(directory)
        name = path.rpartition("/")[2]
        names = files.names(directory)
        needed = [path, *(received[2] for received in self._received[-1:])]
        for other in names:
            if f"{directory}/{other}" not in needed:
                files.unlink(f"{directory}/{other}")
        fd = files.open(path, create=name not in names)
        offset = files.size(fd)
        stat = os.statvfs(directory)
        if offset > size or stat.f_bavail * stat.f_frsize < size - offset + DISK_FREE_REFUSE:
            files.close(fd)
            files.unlink(path)
            raise _SnapshotRefused("there is no disk space for the snapshot")
        return fd, offset

    def _write(self, fd: int, data: bytes, offset: int) -> None:
        """Write into the page cache; the final check flushes the file."""
        while data:
            written = self._files.pwrite(fd, data, offset)
            data = data[written:]
            offset += written

    async def _check(self, path: str, offer: Offer, meta: SnapshotMeta) -> None:
        """Flush and verify the received file; delete it if it differs from the offer."""
        try:
            found = await _run("check", path)
        except StorageError as error:
            self._files.unlink(path)
            raise _SnapshotRefused(str(error)) from None
        if bytes.fromhex(found["digest"]) != offer.digest:
            self._files.unlink(path)
            raise _SnapshotRefused("the digest differs: damaged in transit")
        if found["cluster_id"] not in ("", self._cluster_id):
            self._files.unlink(path)
            raise _SnapshotRefused(
                f"it belongs to cluster {found['cluster_id']}, not {self._cluster_id}"
            )
        if (found["index"], found["term"]) != (meta.index, meta.term):
            self._files.unlink(path)
            raise _SnapshotRefused(f"its last entry is {found['index']}, not {meta.index}")

    # ---- installation ----

    def install(self, meta: SnapshotMeta) -> None:
        """Replace the state store by the received snapshot, durably and atomically.

        The open state store is not changed. The next start or restore opens the new one, and
        `clean` removes the old one. A failure (OSError, StorageError) stops the node.
        """
        files, root = self._files, self._data_dir
        wanted = [
            path for index, term, path in self._received if (index, term) == (meta.index, meta.term)
        ]
        if not wanted:
            raise StorageError(f"the snapshot at entry {meta.index} has not been received")
        self._received = [received for received in self._received if received[2] not in wanted]
        name = generations.following(generations.current(Path(root)))
        directory = f"{root}/{name}"
        files.make_directory(directory)
        files.rename(wanted[-1], f"{directory}/{DATA_FILE}")
        sync_directory(files, directory)
        sync_directory(files, root)
        if failpoints.armed:
            failpoints.reach("snapshot.before_current")
        new_path = f"{root}/{generations.CURRENT}.new"
        text = name.encode() + b"\n"
        fd = files.open(new_path, create=True)
        try:
            if files.pwrite(fd, text, 0) != len(text):
                raise StorageError(f"{new_path}: short write", path=new_path)
            files.sync(fd, SYNC_DATA)
        finally:
            files.close(fd)
        files.rename(new_path, f"{root}/{generations.CURRENT}")
        sync_directory(files, root)
        if failpoints.armed:
            failpoints.reach("snapshot.installed")
        self.installed += 1
        logger.info("installed the snapshot at entry %d", meta.index)


async def _run(*words: str) -> dict[str, Any]:
    """Run a command of `corvo.storage.backup`. Raises StorageError with its error text."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        backup.__name__,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        text = err.decode("utf-8", "replace").strip()
        last = text.rpartition("\n")[2] or f"exit status {process.returncode}"
        raise StorageError(f"{words[0]} of the state store: {last}")
    found: dict[str, Any] = json.loads(out)
    return found


async def _send_refusal(channel: Channel, reason: str) -> None:
    """Send the reason of a refusal, if the channel is open."""
    try:
        await channel.send(DONE, reason.encode())
    except OSError as error:
        logger.debug("%s", error)
