"""Program that makes and checks copies of a state store:

    python -m corvo.storage.backup copy <directory of a state store> <file>
    python -m corvo.storage.backup check <file>

Both commands leave the file synced to disk and print a JSON object: `index` and `term` of the last
applied entry, `cluster_id`, `size`, and `digest` (SHA-256). Errors go to stderr; exit status 1.

A copy is compact and shows the store as of one flush, while the server continues to write: LMDB
copies from a read transaction, and does not reuse the pages of that transaction meanwhile. The
index and term are read from the copy itself.

This is a process of its own for three reasons. A copy of gigabytes takes seconds, and the server
runs one thread whose event loop must not block. A damaged file can kill the process that opens it.
The process runs at a lower priority (nice), so it does not slow the server down.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import lmdb

from corvo._fast.codec.keys import META
from corvo.errors import CorvoError, DiskFull, StorageError
from corvo.limits import DISK_FREE_REFUSE, MAP_SIZE, MIB
from corvo.storage.lmdb import DATA_FILE, ENGINE
from corvo.storage.records.meta import decode_meta

_NICE: Final = 10


def copy(directory: Path, target: Path) -> dict[str, Any]:
    """Copy the state store in the directory to a new file."""
    stat = os.statvfs(target.parent)
    size = (directory / DATA_FILE).stat().st_size
    if stat.f_bavail * stat.f_frsize < size + DISK_FREE_REFUSE:
        raise DiskFull(f"no space in {target.parent} for a copy of {size} bytes")
    env = lmdb.open(
        os.fspath(directory),
        map_size=MAP_SIZE,  # the store may grow before the copy begins
        readonly=True,
        create=False,
        readahead=False,
        lib_version=ENGINE,
    )
    with env, target.open("wb") as file:
        env.reader_check()  # an earlier copy may have been killed
        env.copyfd(file.fileno(), compact=True)
    return check(target)


def check(file: Path) -> dict[str, Any]:
    """Return the description of a copy. Raises StorageError if this version cannot read it."""
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while piece := data.read(MIB):
            digest.update(piece)
        os.fsync(data.fileno())
        size = data.tell()
    env = lmdb.open(
        os.fspath(file), subdir=False, readonly=True, create=False, lock=False, lib_version=ENGINE
    )
    with env:
        wanted = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if size < wanted:
            raise StorageError(f"{file} is truncated: it has {size} of {wanted} bytes")
        with env.begin() as transaction:
            row = transaction.get(META)
    if row is None:
        raise StorageError(f"{file} is not a copy of a state store that was flushed")
    meta = decode_meta(row)
    return {
        "index": meta.applied_index,
        "term": meta.applied_term,
        "cluster_id": meta.cluster_id.hex(),
        "size": size,
        "digest": digest.hexdigest(),
    }


def main(words: list[str]) -> int:
    """Run the program and return its exit status."""
    os.nice(_NICE)
    try:
        if words[0] == "copy":
            found = copy(Path(words[1]), Path(words[2]))
        else:
            found = check(Path(words[1]))
    except (CorvoError, lmdb.Error, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
