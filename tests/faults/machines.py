"""What the nodes of a cluster run on, so that it can break: links, disks, clocks.

- `Network`: each node in a network namespace of its own, all on one bridge, clients outside. A cut
  link loses packets in silence, in one direction: the neighbour table of the sender names a
  hardware address that nobody has. Needs root.
- `Disk`: a file system of its own (ext4 on a loop device) that can be filled, and whose power can
  be cut: what was not written to the device is gone, as EXT4_IOC_SHUTDOWN promises. Needs root.
- `Knobs`: wall clock, slow and failing fdatasync, by a library loaded before the C library
  (`knobs.c`). Needs a C compiler.
"""

import contextlib
import fcntl
import functools
import itertools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
WAIT_S = 40
_POLL_S = 0.02
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_WITHOUT_LOG = struct.pack("I", 2)  # not even the journal is written
_NOBODY = "02:cf:00:00:ff:ff"


class Unavailable(Exception):
    """This machine cannot break like that."""


def eventually(check: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> Any:
    """Ask until the answer is true; the answer."""
    deadline = time.monotonic() + wait_s
    while not (answer := check()):
        assert time.monotonic() < deadline, what
        time.sleep(_POLL_S)
    return answer


def _run(*command: str, given: str | None = None) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, input=given)
    except FileNotFoundError:
        raise Unavailable(f"there is no {command[0]}") from None
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{' '.join(command)}: {error.stderr.strip()}") from None


class Network:
    """A bridge, and one namespace for each node, numbered from 1."""

    _made = itertools.count(os.getpid())

    def __init__(self) -> None:
        # Names of their own: what is deleted goes a little later.
        self._name = f"cf{next(self._made) % 1_000_000}"
        self._net = f"10.213.{next(self._made) % 250}"
        self._numbers: list[int] = []
        _run("ip", "link", "add", self._name, "type", "bridge")
        _run("ip", "addr", "add", f"{self._net}.254/24", "dev", self._name)
        _run("ip", "link", "set", self._name, "up")

    def host(self, number: int) -> str:
        """The address of a node."""
        return f"{self._net}.{number}"

    def prefix(self, number: int) -> list[str]:
        """The command that runs another one where the node lives."""
        return ["ip", "netns", "exec", self._space(number)]

    def _space(self, number: int) -> str:
        return f"{self._name}n{number}"

    def add(self, number: int) -> None:
        """Room for one more node."""
        space, outside = self._space(number), f"{self._name}v{number}"
        _run("ip", "netns", "add", space)
        self._numbers.append(number)
        mac = _mac(number)
        inside = ("name", "eth0", "netns", space, "address", mac)
        _run("ip", "link", "add", outside, "type", "veth", "peer", *inside)
        _run("ip", "link", "set", outside, "master", self._name, "up")
        lines = ["link set lo up", f"addr add {self.host(number)}/24 dev eth0", "link set eth0 up"]
        self._batch(number, lines)
        for other in self._numbers:
            if other != number:
                self._aim(other, number, mac)
                self._aim(number, other, _mac(other))

    def _aim(self, sender: int, receiver: int, mac: str) -> None:
        where = f"{self.host(receiver)} lladdr {mac} dev eth0 nud permanent"
        self._batch(sender, [f"neigh replace {where}"])

    def _batch(self, number: int, lines: list[str]) -> None:
        _run("ip", "-n", self._space(number), "-batch", "-", given="\n".join(lines))

    def cut(self, sender: int, receiver: int) -> None:
        """Lose all packets of this direction."""
        self._aim(sender, receiver, _NOBODY)

    def heal(self) -> None:
        """Lose nothing."""
        for sender in self._numbers:
            for receiver in self._numbers:
                if sender != receiver:
                    self._aim(sender, receiver, _mac(receiver))

    def close(self) -> None:
        """Remove it all."""
        for number in self._numbers:
            subprocess.run(["ip", "link", "del", f"{self._name}v{number}"], check=False)
            subprocess.run(["ip", "netns", "del", self._space(number)], check=False)
        subprocess.run(["ip", "link", "del", self._name], check=False)


def _mac(number: int) -> str:
    return f"02:cf:00:00:00:{number:02x}"


class Disk:
    """A file system in a file."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._image = path.with_suffix(".img")
        with self._image.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        path.mkdir()
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def fill(self) -> None:
        """To the last byte."""
        with (self.path / "filler").open("ab", buffering=0) as file:
            for size in (MIB, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        """Take back what filled it."""
        (self.path / "filler").unlink(missing_ok=True)

    def cut_power(self) -> None:
        """From now on nothing reaches the device, and nothing can be read that is not cached."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _WITHOUT_LOG)
        finally:
            os.close(fd)

    def power_on(self) -> None:
        """Once no process uses it any more: what the device has."""
        eventually(self._unmounted, f"{self.path} is still in use")
        self._mount()

    def _unmounted(self) -> bool:
        done = subprocess.run(["umount", str(self.path)], capture_output=True)
        return done.returncode == 0

    def close(self) -> None:
        """Remove it."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=False, capture_output=True)
        self._image.unlink()


class Knobs:
    """The clock and the disk of one node, for `ServerProcess.environment`."""

    _FIELDS = ("wall_ns", "sync_us", "sync_errno")

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8 * len(self._FIELDS)))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)
        self.environment = {"LD_PRELOAD": str(library()), "FAULT_KNOBS": str(path)}

    def turn(self, field: str, value: int) -> None:
        """Set one of the numbers that knobs.c describes."""
        struct.pack_into("q", self._page, 8 * self._FIELDS.index(field), value)

    def get(self, field: str) -> int:
        """What one of them is now."""
        value: int = struct.unpack_from("q", self._page, 8 * self._FIELDS.index(field))[0]
        return value

    def rest(self) -> None:
        """All as the machine has it."""
        for field in self._FIELDS:
            self.turn(field, 0)


@functools.cache
def library() -> Path:
    """The compiled knobs."""
    directory = Path(tempfile.mkdtemp(prefix="corvo-knobs-"))
    source = Path(__file__).with_name("knobs.c")
    compiler = shutil.which("cc") or "cc"
    target = directory / "knobs.so"
    _run(compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(source), "-ldl")
    return target
