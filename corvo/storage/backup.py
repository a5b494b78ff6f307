"""Makes and checks copies of a base, as a program of its own:

    python -m corvo.storage.backup copy <directory of a base> <file>
    python -m corvo.storage.backup check <file>

Both leave the file on disk, flushed, and print what it holds as JSON: `index` and `term` of the
last entry it has, `cluster_id`, `size`, and `digest` (SHA-256). What is wrong goes to stderr, with
exit status 1.

A copy is compact and shows the base as of one flush, while the server writes on: LMDB copies out
of a read transaction, whose pages are not reused meanwhile. What it is called is read from the copy
itself. This takes seconds for gigabytes, and a damaged file can take the process with it that
opens it; so it is not for the server's own process, whose loop must not stand still and which has
no thread beside it. The program gives way to everybody else (nice).
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
    """Copy the base in the directory to a new file."""
    stat = os.statvfs(target.parent)
    size = (directory / DATA_FILE).stat().st_size
    if stat.f_bavail * stat.f_frsize < size + DISK_FREE_REFUSE:
        raise DiskFull(f"no space in {target.parent} for a copy of {size} bytes")
    env = lmdb.open(
        os.fspath(directory),
        map_size=MAP_SIZE,  # the base may grow before the copy begins
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
    """What a copy holds. Raises StorageError when this version cannot read it."""
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
            raise StorageError(f"{file} was cut short: it has {size} bytes of {wanted}")
        with env.begin() as transaction:
            row = transaction.get(META)
    if row is None:
        raise StorageError(f"{file} is no copy of a base that was ever flushed")
    meta = decode_meta(row)
    return {
        "index": meta.applied_index,
        "term": meta.applied_term,
        "cluster_id": meta.cluster_id.hex(),
        "size": size,
        "digest": digest.hexdigest(),
    }


def main(words: list[str]) -> int:
    """The program; returns its exit status."""
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
