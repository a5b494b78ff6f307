"""The composition root of the sidecar process: what needs threads, or much time, beside the server.

The server starts it with one end of a socket pair and ends it by closing the other end. It is the
only process that has the mirror open: one of an earlier server that is still there, because it was
stopped, is killed first.
"""

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final

from corvo.mirror.files import DIRECTORY, MirrorFiles
from corvo.platform import logging_setup
from corvo.sidecar.channel import Channel

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
_NICE: Final = 10
_LOCK_WAIT_S: Final = 10.0
_LOCK_POLL_S: Final = 0.02
_FLOCK: Final = struct.Struct("hhqqixxxx")  # struct flock of Linux on 64 bits


def lock(path: Path) -> int:
    """Hold the mirror of a data directory; whoever holds it is killed. The descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if time.monotonic() > deadline:
                raise
        holder = _FLOCK.unpack(
            fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
        )[4]
        if holder > 0:
            logger.warning("killing the sidecar of an earlier server, process %d", holder)
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder, signal.SIGKILL)
        time.sleep(_LOCK_POLL_S)


async def _run(descriptor: int, data_dir: Path) -> None:
    loop = asyncio.get_running_loop()
    channel: Channel

    def on_note(name: str, value: Any) -> None:
        assert name == "flushed", name
        mirror_files.on_flushed(value)

    mirror_files = MirrorFiles(data_dir, lambda state: channel.note("state", state))
    channel = Channel(loop, on_note, mirror_files.stop, mirror_files.serve)
    await loop.create_connection(lambda: channel, sock=socket.socket(fileno=descriptor))
    loop.add_signal_handler(signal.SIGTERM, mirror_files.stop)
    await mirror_files.run()
    await mirror_files.close()


def main(arguments: list[str]) -> int:
    """Arguments: descriptor of the socket, data directory, level and form of the log."""
    descriptor, data_dir, level, form = arguments
    logging_setup.configure(level, form)
    os.nice(_NICE)
    # A round makes many objects and no cycles: looking for those is a tenth of the work.
    gc.freeze()
    gc.set_threshold(50_000, 20, 1_000)
    path = Path(data_dir)
    (path / DIRECTORY).mkdir(mode=0o700, exist_ok=True)
    lock(path / DIRECTORY / LOCK_FILE)
    try:
        asyncio.run(_run(int(descriptor), path))
    except Exception as error:
        logger.error("the sidecar ends: %s", error, exc_info=True)
        sys.stderr.flush()
        os._exit(1)  # without waiting for the threads of open connections
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
