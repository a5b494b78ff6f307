"""Whether a cluster that is healthy again and at rest has kept every promise of a round."""

import json
from collections import Counter
from string import ascii_lowercase
from typing import Any, NamedTuple

from faults.arena import FaultyCluster, name_of
from faults.load import Load, drain, seen
from faults.machines import eventually
from lib.harness import Api, ServerProcess

from corvo.storage.reader import Reader
from corvo.storage.records.meta import decode_meta

COLUMNS = ("lost", "doubled", "unexplained", "phantom", "unequal")
_ENDED = ("completed", "dead", "cancelled")
_META = b"m|"
_LOCAL = (_META, b"o|", b"of|")  # about one copy of the base alone
_SKIP = "45s"  # longer than every grace with the lease behind it


class Before(NamedTuple):
    """What was so when the first fault of a round came."""

    term: int
    stamp_ns: int


class Judge:
    """Looks at everything that is left of a round."""

    def __init__(self, cluster: FaultyCluster, load: Load, before: Before) -> None:
        self._cluster = cluster
        self._load = load
        self._before = before
        self.broken: list[tuple[str, str]] = []
        self.counts: Counter[str] = Counter()

    def complain(self, kind: str, text: str) -> None:
        """A promise was broken."""
        assert kind in COLUMNS
        self.broken.append((kind, text))

    def drain(self) -> None:
        """Let workers finish what there is, then let everybody go home."""
        self._load.stop_producing()
        drain(self._count_open, self._skip)
        self._load.stop()

    def _queue(self, name: str) -> dict[str, Any]:
        reply = self._cluster.call(self._cluster.lead(), "GET", f"/queues/{name}")
        return dict(reply[1]) if reply is not None and reply[0] == 200 else {}

    def _count_open(self) -> int:
        """Jobs of both queues that have not ended."""
        count = 0
        for name in self._load.queues:
            row = self._queue(name)
            states = ("scheduled", "pending", "active", "held", "retrying")
            count += sum(row[state] for state in states) if row else 1
        return count

    def _skip(self) -> None:
        self._cluster.call(self._cluster.lead(), "POST", "/test/clock", {"advance": _SKIP})

    def check(self) -> None:
        """All of it."""
        api = self._cluster.lead().api()
        final: dict[str, tuple[str, int]] = {}
        for key, job_ids in sorted(self._load.record.ids.items()):
            job_id = min(job_ids)
            status, document = api.get(f"/jobs/{job_id}")
            if status != 200:
                self.complain("lost", f"{key} was acknowledged as {job_id}: {status}")
                continue
            if document["state"] not in _ENDED or document["payload"] != key:
                self.complain("lost", f"{key} has become {document}")
            final[key] = seen(document)
            if document.get("errors"):
                self._check_silence(api, key, job_id)
        for story in self._load.record.unexplained(final):
            self.complain("unexplained", story)
        self._check_doubled()
        self._check_equal()
        self.counts["acknowledged"] = self._load.acknowledged
        self.counts["leases"] = self._load.record.leases

    def _check_doubled(self) -> None:
        record = self._load.record
        for key in sorted(record.begun):
            ids = record.ids[key] | record.fetched[key]
            if len(ids) > 1:
                self.complain("doubled", f"{key} is {sorted(ids)}")
        rows = [self._queue(name) for name in self._load.queues]
        count = sum(row[state] for row in rows for state in _ENDED)
        if count != len(record.ids):
            kind = "doubled" if count > len(record.ids) else "lost"
            self.complain(kind, f"{len(record.ids)} jobs were enqueued, there are {count}")

    def _check_silence(self, api: Api, key: str, job_id: str) -> None:
        """No attempt was spent by a lease of an earlier term that nobody used."""
        begun: dict[str, Any] | None = None
        for event in api.ok("GET", f"/jobs/{job_id}/events?limit=200")["events"]:
            data = event.get("data")
            reason = data.get("reason") if isinstance(data, dict) else None
            if event["type"] == "started":
                begun = event
            elif begun is not None and reason == "lease_expired":
                attempt = begun["data"]["attempt"]
                used = (key, attempt) in self._load.record.touched
                old = begun["at_ns"] < self._before.stamp_ns
                self.counts["expired"] += 1
                if old and not used and self._cluster.term() > self._before.term:
                    self.complain("phantom", f"{key}: attempt {attempt}, {json.dumps(begun)}")
            elif reason == "delivery_unknown":
                self.counts["restored"] += 1

    # Copies.

    def _check_equal(self) -> None:
        """All nodes have the same rows. One more job sees to it that all is flushed."""
        reply = self._cluster.lead().api().raw("POST", "/enqueue", {"queue": "end"})
        index = int(reply.headers["X-Corvo-Index"])
        copies = {name_of(node): self._copy(node, index) for node in self._cluster.up()}
        first_name, first = min(copies.items())
        for name, copy in sorted(copies.items()):
            keys = [key for key in {*first, *copy} if first.get(key) != copy.get(key)]
            for key in sorted(keys)[:5]:
                text = f"{first.get(key)!r} on {first_name}, {copy.get(key)!r} on {name}"
                self.complain("unequal", f"{len(keys)} rows, {key!r}: {text}")

    def _copy(self, node: ServerProcess, index: int) -> dict[bytes, bytes]:
        """All rows of a node, once it has flushed what that entry did."""
        reader = Reader(node.data_dir)

        def rows() -> dict[bytes, bytes]:
            with reader.snapshot() as snapshot:
                row = snapshot.get(_META)
                meta = None if row is None else decode_meta(row)
                if meta is None or meta.applied_index < index:
                    return {}
                # Entries that changed nothing may have been flushed or not.
                sums = f"{meta.hash.hex()} {meta.fencing} {meta.event_seq}".encode()
                return {_META: sums} | {
                    key: value
                    for letter in ascii_lowercase
                    for key, value in snapshot.scan(letter.encode())
                    if not key.startswith(_LOCAL)
                }

        try:
            found: dict[bytes, bytes] = eventually(rows, f"{name_of(node)} does not flush")
        finally:
            reader.close()
        return found
