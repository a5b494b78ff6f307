"""The CPU time of the loop for one request grows with its bytes, whatever they are.

Every route of the table and every method of the worker service gets inputs of every shape
(tests/lib/request_shapes.py). A request may cost 50 ms for each MB, and no more than six times as
much when it is four times as large; an error never carries more than a part of its input back.
"""

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from lib.cost_cases import Case, cases
from lib.loop_costs import Cost, CostRig, request, server_memory

from corvo._fast.http import http1
from corvo.errors import ECHO_SIZE_MAX, MESSAGE_SIZE_MAX
from corvo.limits import ACK_BATCH_MAX, DEPENDENCIES_MAX, KIB, MIB, RPC_ITEMS_MAX
from corvo.net.rpc.envelopes import Envelopes, envelope

_COMPILED: Final = str(http1.__file__).endswith(".so")
# How much slower interpreted code is. Decoders of binary messages look at each byte.
_SLOWER: Final = 1 if _COMPILED else 12
_SLOWER_IN_BINARY: Final = 1 if _COMPILED else 40
_PER_MB_S: Final = 0.050
_PER_JOB_S: Final = 0.000_040  # that the response names: batches have bounds of their own
_FLOOR_S: Final = 0.008
_QUIET_S: Final = 0.0035
_GROWTH_MAX: Final = 6
_TRIES: Final = 4
_SHOWN_AT_ONCE: Final = 20
# Members of errors that are more than a piece of input, with their largest size in JSON.
_FIELDS: Final = {
    "error": MESSAGE_SIZE_MAX,
    "message": MESSAGE_SIZE_MAX,
    "details": 8 * KIB,
    "validation_errors": 8 * KIB,
}
_REPEATED: Final = re.compile(rf"(\S)\1{{{ECHO_SIZE_MAX}}}")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[CostRig]:
    with server_memory():
        rig = CostRig(tmp_path)
        yield rig
        rig.log.close()


def excess(rig: CostRig, case: Case, size: int) -> str:
    """Describe the faults in the cost of a case and in its response; empty if there is none."""
    slower = _SLOWER_IN_BINARY if case.binary else _SLOWER
    cost = _cheapest(rig, case, size, slower * _FLOOR_S)
    wrong = _echo(cost)
    if cost.seconds <= slower * _FLOOR_S:
        return wrong
    jobs = cost.text.count('"job_')
    slower *= _slowness()
    if "WorkerService" in case.route:  # elements of a message, of which ten cost what a job costs
        jobs += min(case.build(size).count(b"{"), RPC_ITEMS_MAX) // 10
    allowed = _FLOOR_S + _PER_MB_S * cost.size / MIB + _PER_JOB_S * jobs
    if cost.seconds > slower * allowed:
        wrong += f" {cost.seconds * 1e3:.0f} ms for {cost.size} bytes"
    quarter = _cheapest(rig, case, size // 4, 0)
    if cost.seconds > slower * _FLOOR_S + _GROWTH_MAX * quarter.seconds:
        wrong += f" {quarter.seconds * 1e3:.1f} ms become {cost.seconds * 1e3:.1f} ms"
    return wrong


def _slowness() -> float:
    """How much slower this machine is at the moment than a quiet one."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        for _ in range(100):
            dict.fromkeys(range(1_000))
        times.append(time.thread_time() - began)
    return max(1.0, min(times) / _QUIET_S)


def _cheapest(rig: CostRig, case: Case, size: int, enough_s: float) -> Cost:
    """The cost without the disturbances of a shared machine."""
    best: Cost | None = None
    for _ in range(_TRIES):
        cost = case.cost(rig, size)
        if best is None or cost.seconds < best.seconds:
            best = cost
        if best.seconds <= enough_s:
            break
    assert best is not None
    return best


def _echo(cost: Cost) -> str:
    """A text of an error that carries more of its input than it may."""
    if cost.status == 500:
        return f" 500 {cost.response[-200:]!r}"
    if cost.status < 400 or b"json" not in cost.response.partition(b"\r\n\r\n")[0]:
        return ""
    document = json.loads(cost.text or "{}")
    long = [
        name for name, value in document.items() if _size(value) > _FIELDS.get(name, ECHO_SIZE_MAX)
    ]
    again = _REPEATED.search(str(document.get("error", "")))
    return f" echo in {', '.join(long) or 'error'}: {cost.text[:300]}" if long or again else ""


def _size(value: object) -> int:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return len(text.encode("utf-8", "replace"))


def walk(rig: CostRig, size: int, step: int) -> None:
    """Measure every `step`th case; the steps of different routes begin at different cases."""
    wrong, seen = [], set()
    for number, case in enumerate(cases(rig)):
        if number % step == 0:
            seen.add(case.route)
            found = excess(rig, case, min(size, case.size_max or size))
            if found:
                wrong.append(f"{case.label}:{found}")
    assert seen == {"frame"} | {f"{r.method} {r.pattern}" for r in rig.routes}
    assert not wrong, "\n".join([f"{len(wrong)} cases", *wrong[:_SHOWN_AT_ONCE]])


def test_requests_of_every_shape(rig: CostRig) -> None:
    walk(rig, 64 * KIB, 41)


BODY = b'{"queue":"q","payload":"' + b"a" * (200 * KIB) + b'"}'


def in_chunks(body: bytes) -> bytes:
    """A request with its body in the smallest chunks that are taken."""
    step = len(body) // 9_000 + 1
    chunks = [body[at : at + step] for at in range(0, len(body), step)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    head = request(b"POST", b"/api/v1/enqueue", b"", b"Transfer-Encoding: chunked\r\n")
    return head.replace(b"Content-Length: 0\r\n", b"") + coded + b"0\r\n\r\n"


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_in_small_pieces(rig: CostRig, chunked: bool) -> None:
    """A body that comes in many reads costs no more than their number."""
    data = in_chunks(BODY) if chunked else request(b"POST", b"/api/v1/enqueue", BODY)
    cost = min((rig.send(data, 256) for _ in range(_TRIES)), key=lambda cost: cost.seconds)
    assert cost.status == 201, cost.response
    assert cost.seconds < _SLOWER * (0.050 + len(data) / 256 * 0.000_020)


def test_messages_in_small_pieces() -> None:
    """A message of a stream is copied once, not once for each piece of it."""

    def feed(size: int) -> float:
        best = math.inf
        data = envelope(b"a" * size)
        for _ in range(_TRIES):
            envelopes = Envelopes(size, gzip=False)
            began = time.thread_time()
            found = [envelopes.feed(data[at : at + 256]) for at in range(0, len(data), 256)]
            best = min(best, time.thread_time() - began)
            assert found[-1] == [b"a" * size] and not any(found[:-1])
        return best

    assert feed(MIB) < _GROWTH_MAX * feed(256 * KIB) + 0.005


def test_many_dependencies(rig: CostRig) -> None:
    """A job with all the dependencies that it may have, and a batch with more than that."""
    jobs = {"jobs": [{"queue": "first"}] * DEPENDENCIES_MAX}
    ids = rig.call("POST", "/enqueue/batch", jobs)["job_ids"]
    body = {"queue": "second", "depends_on": ids}
    rig.call("POST", "/enqueue", body)
    for target, document, status, seconds in (
        (b"/api/v1/enqueue", body, 201, 0.030),
        (b"/api/v1/enqueue/batch", {"jobs": [body] * 5}, 201, 0.100),
        (b"/api/v1/enqueue/batch", {"jobs": [body] * 50}, 400, 0.100),
    ):
        data = request(b"POST", target, json.dumps(document).encode())
        cost = min((rig.send(data) for _ in range(2)), key=lambda cost: cost.seconds)
        assert cost.status == status
        assert cost.seconds < _SLOWER * seconds


@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("size", "step"), [(64 * KIB, 1), (MIB, 5), (12 * MIB, 199)])
def test_large_requests_of_every_shape(rig: CostRig, size: int, step: int) -> None:
    walk(rig, size, step)


def test_a_frame_with_too_many_fails_is_refused(rig: CostRig) -> None:
    item = b"\x4a\x02\x0a\x00"  # a fail with an empty job id
    cost = rig.frame(item * (ACK_BATCH_MAX + 1))
    assert b"fail: too many items" in cost.response
    assert b"too many" not in rig.frame(item * ACK_BATCH_MAX).response
