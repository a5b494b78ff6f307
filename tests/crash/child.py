"""A server without its front in a process of its own, which a failpoint kills.

The child says on a pipe what it acknowledges, as a server does on its connections.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from crash.engine import IDENTITY, SEGMENT, Load
from lib.fsm_driver import Step, encode_step

from corvo import ops
from corvo.consensus.single_log import SingleLog
from corvo.engine.pipeline import Pipeline
from corvo.errors import CorvoError
from corvo.fsm.machine import Machine
from corvo.platform import failpoints
from corvo.platform.clock import TestClock
from corvo.platform.files import Files
from corvo.storage.data_dir import DataDir
from corvo.storage.lmdb import StateStore

OPS = 250
OPS_A_FLUSH = 7


def run(root: Path, failpoint: str, durable: bool, seed: int, count: int = OPS) -> tuple[int, str]:
    """Live until the failpoint kills, or stop after so many ops; the exit status (negative: the
    signal) and the lines that were acknowledged: a verb and the id of a job."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_fd)
            failpoints.arm(failpoint)
            asyncio.run(_live(root, durable, Load(seed), write_fd, count))
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.close(write_fd)
    with open(read_fd) as pipe:
        lines = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), lines


async def _live(root: Path, durable: bool, load: Load, out: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    clock = TestClock()
    data_dir = DataDir(str(root), IDENTITY, Files())
    state_store = StateStore.open(root, ballast_size=0)
    machine = Machine(state_store)
    log = SingleLog(
        str(root / "wal"),
        IDENTITY,
        durable=durable,
        new_salt=lambda: int.from_bytes(clock.random_bytes(4), "big"),
        segment_size=SEGMENT,
    )
    pipeline = Pipeline(loop, clock, log, machine, state_store, 1000)
    log.on_failed = pipeline.on_fatal = _fatal
    for entry in log.start(machine.applied_index, machine.applied_term, loop):
        machine.apply(entry.index, entry.term, entry.data)
    clock.observe(machine.stamp_ns)
    pipeline.start()
    for number in range(count):
        step = load.step()
        answered: asyncio.Future[Any] = loop.create_future()
        pipeline.submit(step[0], encode_step(step), (_answer, answered))
        result = await answered
        load.take([result])
        _say(out, step, result)
        if number % OPS_A_FLUSH == 0:
            pipeline.flusher.flush()
    pipeline.close()
    log.close()
    state_store.close()
    data_dir.close()


def _answer(answered: "asyncio.Future[Any]", result: Any) -> None:
    answered.set_result(result)


def _say(out: int, step: Step, result: Any) -> None:
    verbs = {ops.ENQUEUE.number: "enqueued", ops.ACK.number: "acked"}
    verbs |= {ops.DELETE_JOB.number: "deleted"}
    verb = verbs.get(step[0].number)
    if verb and not isinstance(result, CorvoError):
        job_id = result.job_id if verb == "enqueued" else step[1][0]
        os.write(out, f"{verb} {job_id}\n".encode())


def _fatal(error: Exception) -> None:
    """As the node does."""
    os._exit(3)
