"""What is measured: each case prepares its input and returns the loop over it."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench.micro.rig import ENQUEUE, FETCH, MAP_SIZE, PAYLOAD, Rig, http_request
from bench.micro.worker_stream import WorkerStream
from corvo import ops
from corvo._fast.batcher import Batcher
from corvo._fast.codec import layouts, wal_record
from corvo._fast.http.http1 import H1Conn
from corvo.engine.commands.inputs import EnqueueBody
from corvo.fsm.machine import Machine
from corvo.net.api.requests import decode
from corvo.platform.clock import Clock
from corvo.platform.ids import JobIds
from corvo.storage.lmdb import StateStore
from corvo.storage.memory import MemoryStore
from corvo.storage.rows import Rows

Loop = Callable[[int], None]
BATCH = 64
FLUSH = 1_000


@dataclass(frozen=True)
class Case:
    """`prepare()` gives a function that does its work so many times; each time counts for `unit`
    operations. With `one_thread` the CPU time of other threads does not count."""

    prepare: Callable[[], Loop]
    what: str
    unit: int = 1
    one_thread: bool = False


CASES: dict[str, Case] = {}


def case(
    name: str, what: str, unit: int = 1, one_thread: bool = False
) -> Callable[[Callable[[], Loop]], Callable[[], Loop]]:
    """Enter the function that follows into the table."""

    def enter(prepare: Callable[[], Loop]) -> Callable[[], Loop]:
        CASES[name] = Case(prepare, what, unit, one_thread)
        return prepare

    return enter


def enqueue_values(job_id: str) -> tuple[object, ...]:
    """The values of an Enqueue op that says nothing special."""
    return (
        job_id,
        "bench",
        2,
        PAYLOAD,
        b"",
        3,
        3,
        5000,
        600_000,
        100_000,
        0,
        b"",
        "",
        b"",
        0,
        0,
        b"",
    )


def _repeat(call: Callable[[], object]) -> Loop:
    def run(count: int) -> None:
        for _ in range(count):
            call()

    return run


# ---- parts ----


@case("layouts.encode", "an Enqueue op of 150 bytes to bytes")
def _encode() -> Loop:
    values = enqueue_values(JobIds(Clock().random_bytes).new(1))
    return _repeat(lambda: layouts.encode_fields(ops.ENQUEUE.layout, values))


@case("layouts.decode", "and back")
def _decode() -> Loop:
    data = layouts.encode_fields(ops.ENQUEUE.layout, enqueue_values("job_" + "0" * 26))
    return _repeat(lambda: layouts.decode_fields(ops.ENQUEUE.layout, data))


@case("batch", "an op through the batcher into a frame of 64", BATCH)
def _batch() -> Loop:
    payload = layouts.encode_fields(ops.ENQUEUE.layout, enqueue_values("job_" + "0" * 26))
    batcher = Batcher(4096, 1 << 22)

    def run(count: int) -> None:
        for _ in range(count):
            for _ in range(BATCH):
                batcher.add(ops.OTHERS, 1, payload, None)
            batcher.seal(1, 1)

    return run


@case("record", "a WAL record of 16 KiB")
def _record() -> Loop:
    writer = wal_record.Writer(1, 1, 0)
    data = bytes(16 * 1024)
    return _repeat(lambda: writer.add(wal_record.ENTRY, 1, 1, data, 0))


@case("ids", "a job id, a new millisecond every tenth")
def _ids() -> Loop:
    ids = JobIds(Clock().random_bytes)

    def run(count: int) -> None:
        for i in range(count):
            ids.new(i * 100_000)

    return run


@case("clock", "a stamp")
def _clock() -> Loop:
    return _repeat(Clock().stamp)


@case("json", "the body of an enqueue to a struct")
def _json() -> Loop:
    body = b'{"queue":"bench","payload":%b}' % PAYLOAD
    return _repeat(lambda: decode(body, EnqueueBody))


@case("http1", "a request parsed and answered on one connection")
def _http1() -> Loop:
    rig = Rig(1, memory=True)
    connection = H1Conn(rig.server.context, "::1")

    def run(count: int) -> None:
        for _ in range(count):
            connection.feed(ENQUEUE)[0].reply(201, b'{"status":"ok"}')
            connection.data_to_send()

    return run


@case("router.literal", "the route of POST /api/v1/enqueue")
def _route() -> Loop:
    match = Rig(0, memory=True).router.match
    return _repeat(lambda: match("POST", b"/api/v1/enqueue"))


@case("router.parameter", "the route of POST /api/v1/ack/{job_id}")
def _route_parameter() -> Loop:
    match = Rig(0, memory=True).router.match
    return _repeat(lambda: match("POST", b"/api/v1/ack/job_01HZX8WQ0000000000000000AA"))


# ---- the state machine ----


class _Jobs:
    """A machine and frames of 64 ops for it."""

    def __init__(self, state_store: Rows) -> None:
        self.machine = Machine(state_store)
        self.ids = JobIds(Clock().random_bytes)
        self.stamp_ns = 1_800_000_000_000_000_000

    def apply(self, op: ops.Op, payloads: list[bytes]) -> list[Any]:
        self.stamp_ns += 1_000_000
        stamp = layouts.encode_fields(ops.STAMP.layout, (self.stamp_ns, 1))
        frame = layouts.encode_frame([(0, stamp), *((op.number, payload) for payload in payloads)])
        machine = self.machine
        results = machine.apply(machine.applied_index + 1, 1, frame)
        machine.take_events()
        machine.take_woken()
        return results

    def enqueue(self) -> list[Any]:
        new, layout = self.ids.new, ops.ENQUEUE.layout
        return self.apply(
            ops.ENQUEUE,
            [
                layouts.encode_fields(layout, enqueue_values(new(self.stamp_ns)))
                for _ in range(BATCH)
            ],
        )

    def live(self) -> None:
        """64 whole lives."""
        self.enqueue()
        fetch = layouts.encode_fields(
            ops.FETCH.layout, (["bench"], "w1", "", 60_000_000_000, 1 << 20)
        )
        fetched = self.apply(ops.FETCH, [fetch] * BATCH)
        layout = ops.ACK.layout
        acks = [
            layouts.encode_fields(layout, (job.job_id, job.token, b"", b"", b"")) for job in fetched
        ]
        self.apply(ops.ACK, acks)


@case("apply.enqueue", "encode and apply an enqueue in an entry of 64; flush left out", BATCH)
def _apply_enqueue() -> Loop:
    jobs = _Jobs(MemoryStore())

    def run(count: int) -> None:
        for _ in range(count):
            jobs.enqueue()

    return run


@case("apply.life", "encode and apply enqueue, fetch and ack in entries of 64", BATCH)
def _apply_life() -> Loop:
    jobs = _Jobs(MemoryStore())

    def run(count: int) -> None:
        for _ in range(count):
            jobs.live()

    return run


@case("flush.waiting", "encode, apply and flush to disk a job that waits", BATCH * 16)
def _flush_waiting() -> Loop:
    directory = tempfile.TemporaryDirectory()
    jobs = _Jobs(StateStore.open(Path(directory.name), MAP_SIZE))

    def run(count: int) -> None:
        assert directory
        for _ in range(count):
            for _ in range(16):
                jobs.enqueue()
            jobs.machine.flush()

    return run


# ---- the way of a write ----


@case("entry", "an entry of one op, all but the op: seal, log, apply, answer, turn")
def _entry() -> Loop:
    rig = Rig(0)
    payload = layouts.encode_fields(ops.HEARTBEAT.layout, ([],))
    submit, run_loop = rig.pipeline.submit, rig.loop.run
    completion = (_nothing, None)

    def run(count: int) -> None:
        for _ in range(count):
            submit(ops.HEARTBEAT, payload, completion)
            run_loop()

    return run


@case(
    "entry.durable",
    "the same, flushed: what the loop pays, which sleeps and is woken",
    one_thread=True,
)
def _entry_durable() -> Loop:
    loop = uvloop.new_event_loop()
    rig = Rig(0, loop=loop)
    payload = layouts.encode_fields(ops.HEARTBEAT.layout, ([],))

    def run(count: int) -> None:
        def answer(left: int, _result: object) -> None:
            if left:
                loop.call_soon(rig.pipeline.submit, ops.HEARTBEAT, payload, (answer, left - 1))
            else:
                loop.stop()

        answer(count, None)
        loop.run_forever()

    return run


def _nothing(_argument: object, _result: object) -> None:
    pass


@case("enqueue", "an enqueue from request to reply, 64 connections, sockets left out", BATCH)
def _enqueue() -> Loop:
    rig = Rig(BATCH)
    requests = [ENQUEUE] * BATCH
    return _repeat(lambda: rig.turn(requests))


@case("life", "enqueue, fetch and ack from request to reply, as above", BATCH)
def _life() -> Loop:
    rig = Rig(BATCH)

    def live() -> None:
        rig.turn([ENQUEUE] * BATCH)
        acks = []
        for reply in rig.turn([FETCH] * BATCH):
            job_id = reply.split(b'"job_id":"', 1)[1].split(b'"', 1)[0]
            token = reply.split(b'"lease_token":"', 1)[1].split(b'"', 1)[0]
            acks.append(http_request(b"ack/" + job_id, b'{"lease_token":"%b"}' % token))
        for reply in rig.turn(acks):
            assert reply.startswith(b"HTTP/1.1 200"), reply

    return _repeat(live)


@case("streamed life", "enqueue, fetch and ack in frames of 64 of one worker stream", BATCH)
def _streamed_life() -> Loop:
    return _repeat(WorkerStream(Rig(0), BATCH).exchange)
