"""Reading the base from another process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from corvo.storage.lmdb import StateStore

CHILD = """
import json, sys
from pathlib import Path
from corvo.storage.reader import Reader

reader = Reader(Path(sys.argv[1]))
for line in sys.stdin:
    with reader.snapshot() as snapshot:
        answer = [
            (snapshot.get(b"a|1") or b"").decode(),
            [key.decode() for key, _ in snapshot.take(b"a|", b"a|2", 2)],
            len(list(snapshot.scan(b"big|"))),
            [key.decode() for key, _ in snapshot.take(b"zz|", b"", 9)],
        ]
    print(json.dumps(answer), flush=True)
reader.close()
"""


def test_snapshots_see_what_was_written(tmp_path: Path) -> None:
    state_store = StateStore.open(tmp_path, ballast_size=0)
    state_store.write([(b"a|%d" % n, b"%d" % n) for n in range(1, 6)], [])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask() -> Any:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline())

    assert ask() == ["1", ["a|2", "a|3"], 0, []]
    state_store.write([(b"a|1", b"new")], [b"a|2"])
    assert ask() == ["new", ["a|3", "a|4"], 0, []]
    for part in range(8):  # far more than the map that LMDB takes by itself
        state_store.write([(b"big|%d-%d" % (part, n), bytes(40_000)) for n in range(100)], [])
    assert ask() == ["new", ["a|3", "a|4"], 800, []]
    child.kill()
    child.wait()
    assert state_store.reader_check() in (0, 1)
    state_store.close()
