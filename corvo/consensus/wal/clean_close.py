"""The clean-shutdown marker: where the log of a cluster node ended at shutdown.

    <data-dir>/wal/closed     "<name of the newest segment> <offset of its end> <CRC of the last
                              record>", a space, the CRC32C of all that, as text

It is written after a clean shutdown and deleted by the next start. If the log then ends elsewhere,
it has lost data that was on disk: not only jobs, which are also in the state store, but also
entries that this node confirmed without knowing that they are committed, and its vote. Other nodes
rely on both, so such a node must not continue; it must be replaced. (A single server needs no
marker, because no other node relies on it.)

A marker that cannot be written or read is ignored: then only this check is missing.
"""

import contextlib
from typing import Final, NamedTuple

from corvo._fast.codec.wal_record import crc32c
from corvo.platform.files import SYNC_DATA, Files
from corvo.storage.data_dir import sync_directory

NAME: Final = "closed"


class End(NamedTuple):
    """The end of a log: segment, offset, and CRC of the last record."""

    segment: str
    offset: int
    crc: int


def write_marker(files: Files, directory: str, end: End) -> None:
    """Write the marker, as the last step of a shutdown."""
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


def read_marker(files: Files, directory: str) -> End | None:
    """Read the marker; None if it is invalid."""
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
