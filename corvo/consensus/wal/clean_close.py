"""Where the log of a node in a cluster ended when it was closed.

    <data-dir>/wal/closed     "<name of the newest segment> <offset of its end> <CRC of the last
                              record>", a space, the CRC32C of all that, as text

It is written when a log has been closed cleanly, and goes with the next start. A log that ends
elsewhere then has lost what was on disk: not only jobs, which the base has, too, but also entries
that this node confirmed and does not know to be committed, and its vote. Others rely on both, so
such a node must not go on as if nothing had happened; it has to be replaced. (A single server owes
nothing to anybody, and needs no mark.)

A mark that cannot be written, or be read, is none: it only makes less sure.
"""

import contextlib
from typing import Final, NamedTuple

from corvo._fast.codec.wal_record import crc32c
from corvo.platform.files import SYNC_DATA, Files
from corvo.storage.data_dir import sync_directory

NAME: Final = "closed"


class End(NamedTuple):
    """The end of a log."""

    segment: str
    offset: int
    crc: int


def write_mark(files: Files, directory: str, end: End) -> None:
    """Say where the log ends. The last thing that is done to it."""
    text = f"{end.segment} {end.offset} {end.crc}"
    line = f"{text} {crc32c(0, text.encode())}\n".encode()
    with contextlib.suppress(OSError):
        fd = files.open(f"{directory}/{NAME}", create=True)
        try:
            files.pwrite(fd, line, 0)
            files.sync(fd, SYNC_DATA)
        finally:
            files.close(fd)
        sync_directory(files, directory)


def read_mark(files: Files, directory: str) -> End | None:
    """Where the log ended, if that is known."""
    fd = files.open(f"{directory}/{NAME}")
    try:
        line = files.pread(fd, files.size(fd), 0)
    finally:
        files.close(fd)
    text, _, crc = line.decode(errors="replace").rpartition(" ")
    if not crc.endswith("\n") or crc.strip() != str(crc32c(0, text.encode())):
        return None
    segment, offset, last = text.split(" ")
    return End(segment, int(offset), int(last))
