"""The data directory: one server at a time, and always the same node.

    <data-dir>/lock            held (flock) while a server runs on the directory
    <data-dir>/identity.json   {"format": 1, "cluster_id", "node_id", "incarnation", "joined"}
    <data-dir>/wal/            the log (`corvo.consensus.wal.wal`)

The identity is written once, before anything else. The cluster id tells clusters apart, the
incarnation tells a node from an earlier one of the same name whose data was lost: both are in
the head of every log segment, so that files of different origin never mix. `joined` says that the
cluster was there before the node, which therefore must not begin one by itself; absent: false.
"""

import json
from typing import Any, NamedTuple

from corvo.errors import StorageError
from corvo.platform.files import SYNC_DATA, SYNC_FULL, Files

_FORMAT = 1
_NOT_DATA = ("lock", "identity.json.new", "lost+found")
_HEX_DIGITS = {"cluster_id": 32, "incarnation": 16}


class Identity(NamedTuple):
    """Who a node is. `cluster_id` has 32 hexadecimal digits, `incarnation` 16."""

    cluster_id: str
    node_id: str
    incarnation: str
    joined: bool = False


def has_identity(path: str) -> bool:
    """Whether a node has already begun in this data directory."""
    try:
        return "identity.json" in Files().names(path)
    except FileNotFoundError:
        return False


class DataDir:
    """A locked data directory. Opened before, and closed after, everything that lives in it."""

    def __init__(
        self, path: str, new_identity: Identity, files: Files, *, bootstrap: bool = True
    ) -> None:
        """`new_identity` (random ids, made by the caller) is taken if there is none yet and
        `bootstrap` allows it. Of an existing directory it must give the node id.
        """
        self.path = path
        self._files = files
        files.make_directory(path)
        # At each start: the process that made it may have been killed before it got there.
        sync_directory(files, _parent(path))
        try:
            self._lock_fd = files.lock(f"{path}/lock")
        except BlockingIOError:
            raise StorageError(
                f"{path}: another server is running on this data directory", path=path
            ) from None
        try:
            found = self._read_identity()
            if found is None and not bootstrap:
                raise StorageError(
                    f"{path}: there is no data here, and bootstrap = false forbids a new start",
                    path=path,
                )
            self.identity = found or self._write_identity(new_identity)
            if self.identity.node_id != new_identity.node_id:
                raise StorageError(
                    f"{path}: the data belongs to node {self.identity.node_id!r}, "
                    f"not to {new_identity.node_id!r}",
                    path=path,
                )
        except BaseException:
            files.close(self._lock_fd)
            raise

    def close(self) -> None:
        """Let go of the lock."""
        self._files.close(self._lock_fd)

    @property
    def _identity_path(self) -> str:
        return f"{self.path}/identity.json"

    def _read_identity(self) -> Identity | None:
        names = self._files.names(self.path)
        if "identity.json" not in names:
            others = [name for name in names if name not in _NOT_DATA]
            if others:
                raise StorageError(
                    f"{self.path}: there is data ({', '.join(others[:3])}) but no identity.json; "
                    "restore the file or start with an empty directory",
                    path=self.path,
                )
            return None
        fd = self._files.open(self._identity_path)
        try:
            text = self._files.pread(fd, self._files.size(fd), 0)
        finally:
            self._files.close(fd)
        try:
            return _parse_identity(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise StorageError(f"{self._identity_path}: {error}", path=self.path) from None

    def _write_identity(self, identity: Identity) -> Identity:
        files = self._files
        fields = {"format": _FORMAT, **identity._asdict()}
        _parse_identity(fields)
        text = json.dumps(fields, indent=2).encode() + b"\n"
        new_path = f"{self._identity_path}.new"
        fd = files.open(new_path, create=True)
        try:
            if files.pwrite(fd, text, 0) != len(text):
                raise StorageError(f"{new_path}: short write", path=self.path)
            files.sync(fd, SYNC_DATA)
        finally:
            files.close(fd)
        files.rename(new_path, self._identity_path)
        sync_directory(files, self.path)
        return identity


def sync_directory(files: Files, path: str) -> None:
    """Make the names in a directory durable."""
    fd = files.open_directory(path)
    try:
        files.sync(fd, SYNC_FULL)
    finally:
        files.close(fd)


def _parent(path: str) -> str:
    parent, slash, _ = path.rstrip("/").rpartition("/")
    return parent or slash or "."


def _parse_identity(fields: Any) -> Identity:
    """Raises ValueError saying what is wrong."""
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    if fields.get("format") != _FORMAT:
        raise ValueError(f"format is {fields.get('format')!r}, this version knows {_FORMAT}")
    for name in ("cluster_id", "node_id", "incarnation"):
        if not isinstance(fields.get(name), str) or not fields[name]:
            raise ValueError(f"{name} is missing")
    for name, digits in _HEX_DIGITS.items():
        if len(fields[name]) != digits or set(fields[name]) - set("0123456789abcdef"):
            raise ValueError(f"{name} must have {digits} hexadecimal digits")
    joined = fields.get("joined", False)
    if not isinstance(joined, bool):
        raise ValueError("joined must be true or false")
    return Identity(fields["cluster_id"], fields["node_id"], fields["incarnation"], joined)
