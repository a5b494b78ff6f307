"""A lifecycle stream: frames in and out, their ops, and jobs that are not delivered."""

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from corvo import limits
from corvo._fast.codec import protobuf
from corvo.engine.caller import ANONYMOUS
from corvo.errors import CorvoError, NotFound, Overloaded, ValidationError
from corvo.model import Acked, EnqueuedBatch, Fetched, Job
from corvo.net.rpc.codecs import CODECS
from corvo.net.rpc.status import TYPES, RpcError
from corvo.net.rpc.worker_service import Values, job_values, jobs_field
from corvo.net.rpc.worker_session import LifecycleSession

FETCH = {"queues": ["q"], "fetch_count": 3}


class Calls:
    """What is proposed, to be answered by the test."""

    def __init__(self) -> None:
        self.proposed: list[tuple[str, Any, Callable[[Any], None]]] = []
        self.abandoned: list[Any] = []
        self.refuse: CorvoError | None = None

    def _propose(self, kind: str, what: Any, answer: Callable[[Any], None]) -> Any:
        if self.refuse is not None:
            raise self.refuse
        self.proposed.append((kind, what, answer))
        return SimpleNamespace(what=what)

    def ack_items(
        self,
        _caller: Any,
        items: list[Values],
        refuse: Callable[[CorvoError, int], None],
        answer: Callable[[Any], None],
    ) -> None:
        for position, item in enumerate(items):
            if item.get("result_json") == "invalid":
                refuse(ValidationError("not JSON"), position)
        self._propose("ack", [item["job_id"] for item in items], answer)

    def fail_job(self, _caller: Any, values: Values, answer: Callable[[Any], None]) -> None:
        self._propose("fail", values["job_id"], answer)

    def enqueue_all(
        self,
        _caller: Any,
        items: list[Values],
        refuse: Callable[[CorvoError, int], None],
        answer: Callable[[Any], None],
    ) -> bool:
        queues = [item["queue"] for item in items if item.get("queue")]
        for position, item in enumerate(items):
            if not item.get("queue"):
                refuse(ValidationError("queue is required"), position)
        if queues:
            self._propose("enqueue", queues, answer)
        return bool(queues)

    def fetch_for(
        self, _caller: Any, _recipient: Any, body: Any, count: int, answer: Callable[[Any], None]
    ) -> Any:
        return self._propose("fetch", (body.queues, count, body.timeout), answer)

    def abandon(self, wait: Any) -> None:
        self.abandoned.append(wait.what)

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.proposed]

    def answer(self, *results: Any) -> None:
        """Answer what was proposed, in order."""
        proposed, self.proposed = self.proposed, []
        for (_, _, answer), result in zip(proposed, results, strict=True):
            answer(result)


class Stream:
    """A session and its responses."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.sent: list[Values] = []
        self.ends: list[RpcError | None] = []
        calls: Any = self.calls
        self.session = LifecycleSession(
            calls, ANONYMOUS, "peer", self.sent.append, self.ends.append, CODECS["json"].jobs
        )

    def send(self, **values: Any) -> None:
        self.session.receive(values)


def acked(count: int) -> Acked:
    result = Acked()
    result.count = count
    return result


def enqueued(*ids: str) -> Any:
    jobs: Any = [SimpleNamespace(job_id=job_id) for job_id in ids]
    return EnqueuedBatch(jobs, "")


def fetched(job_id: str) -> Fetched:
    job = Job(job_id)
    job.payload, job.attempt, job.max_retries = b"{}", 1, 3
    job.lease_ns, job.fencing = 60 * limits.SECOND_NS, 5
    return Fetched(job, "q", "t")


def test_jobs_are_written_the_same_by_both_ways() -> None:
    message = TYPES["LifecycleStreamResponse"]
    job = fetched("x")
    for job.checkpoint, job.tags, job.max_retries, job.fencing in (
        (b"", b"", 0, 1),
        (b"[1]", b'{"a":"b"}', 300, 1 << 60),
    ):
        job.payload += b'"%b"' % (b"y" * 200)
        by_dict = {"request_id": 7, "jobs": [job_values(job)] * 2}
        by_bytes = {"request_id": 7, "jobs": jobs_field([job, job])}
        assert protobuf.encode(message, by_bytes) == protobuf.encode(message, by_dict)


def test_all_parts_are_proposed_at_once_and_answered_together() -> None:
    stream = Stream()
    acks, fails = [{"job_id": "a"}, {"job_id": "b"}], [{"job_id": "c"}]
    stream.send(request_id=9, acks=acks, fails=fails, enqueues=[{"queue": "r"}], **FETCH)
    assert stream.calls.kinds() == ["ack", "fail", "enqueue", "fetch"]
    assert stream.calls.proposed[3][1] == (["q"], 3, 0), "a frame with work does not wait"
    assert stream.sent == []
    stream.calls.answer(acked(2), None, enqueued("n"), [fetched("x")])
    (response,) = stream.sent
    jobs = response.pop("jobs")
    assert response == {"request_id": 9, "acked": 2, "enqueued_job_ids": ["n"]}
    assert [job["job_id"] for job in jobs] == ["x"] and jobs[0]["lease_token"] == "t"


def test_a_frame_without_work_is_answered_at_once() -> None:
    stream = Stream()
    stream.send(request_id=1)
    assert stream.sent == [{"request_id": 1}]


def test_frames_are_answered_in_order_one_after_the_other() -> None:
    stream = Stream()
    stream.send(request_id=1, **FETCH)
    stream.send(request_id=2)
    stream.send(request_id=3, acks=[{"job_id": "a"}])
    assert stream.calls.kinds() == ["fetch"] and stream.session.waiting == 3
    stream.calls.answer([])
    assert [response["request_id"] for response in stream.sent] == [1, 2]
    stream.session.end_of_input()
    assert stream.ends == []
    stream.calls.answer(acked(1))
    assert stream.sent[2] == {"request_id": 3, "acked": 1} and stream.ends == [None]


def test_a_fetch_that_finds_nothing_waits_for_a_moment_only() -> None:
    """Whether the worker holds jobs or not (item 9 of the frames in the specification)."""
    stream = Stream()
    waits = []
    for result, acks in (([fetched("x"), fetched("y")], []), ([], []), ([], ["x", "y"])):
        stream.send(acks=[{"job_id": job_id} for job_id in acks], **FETCH)
        waits.append(stream.calls.proposed[-1][1][2])
        stream.calls.answer(*([acked(2)] if acks else []), result)
    stream.send(**FETCH)
    waits.append(stream.calls.proposed[-1][1][2])
    assert waits == [0.1, 0.1, 0, 0.1]


def test_the_first_error_is_named_and_the_rest_stands() -> None:
    stream = Stream()
    stream.send(
        request_id=1,
        acks=[{"job_id": "a"}, {}],
        enqueues=[{"queue": ""}, {"queue": "r"}],
        fails=[{"job_id": "z"}],
    )
    stream.calls.answer(acked(1), NotFound("job z not found"), enqueued("n"))
    assert stream.sent == [
        {
            "request_id": 1,
            "acked": 1,
            "enqueued_job_ids": ["n"],
            "error": "ack: item 1: job_id is required",
        }
    ]
    stream.send(fetch_count=1)
    assert stream.sent[-1]["error"] == "fetch: at least one queue is required"


def test_too_many_items() -> None:
    stream = Stream()
    stream.send(acks=[{"job_id": "a"}] * 513)
    stream.send(enqueues=[{"queue": "a"}] * 1001)
    assert [response["error"] for response in stream.sent] == [
        "ack: too many items",
        "enqueue: too many items",
    ]


def test_overload_is_named_and_is_no_strike() -> None:
    stream = Stream()
    stream.calls.refuse = Overloaded("busy", retry_after_ms=5)
    for _ in range(2 * limits.LIFECYCLE_STRIKES_MAX):
        stream.send(enqueues=[{"queue": "a"}])
    assert stream.sent[-1]["error"] == "OVERLOADED: enqueue: busy (retry_after_ms=5)"
    assert stream.ends == []


def test_too_many_errors_in_a_row_end_the_stream() -> None:
    stream = Stream()
    for _ in range(limits.LIFECYCLE_STRIKES_MAX - 1):
        stream.send(acks=[{}])
    stream.send()
    for _ in range(limits.LIFECYCLE_STRIKES_MAX):
        assert stream.ends == []
        stream.send(acks=[{}])
    (error,) = stream.ends
    assert error is not None and error.message == "too many consecutive errors"
    stream.send(request_id=5)
    assert stream.sent[-1]["request_id"] == 0


def test_who_leaves_gives_back_what_it_has_not_got() -> None:
    stream = Stream()
    stream.send(**FETCH)
    stream.session.close()
    assert len(stream.calls.abandoned) == 1
    stream.calls.answer([fetched("x")])
    assert stream.sent == []

    stream = Stream()
    stream.send(**FETCH)
    stream.calls.answer([fetched("x")])
    stream.session.close()
    assert len(stream.calls.abandoned) == 1, "sent, but who knows whether it arrived"

    stream = Stream()
    stream.send(**FETCH)
    stream.calls.answer([fetched("x")])
    stream.session.delivered()
    stream.session.close()
    assert stream.calls.abandoned == [], "what it has got is its own"


@pytest.mark.parametrize(
    ("work", "results"),
    [
        ({"acks": [{"job_id": "a"}]}, [acked(1)]),
        ({"fails": [{"job_id": "a"}]}, [None]),
        ({"enqueues": [{"queue": "q"}]}, [enqueued("b")]),
    ],
    ids=["acks", "fails", "enqueues"],
)
def test_nothing_keeps_itself_alive(work: dict[str, Any], results: list[Any]) -> None:
    """Full collections are switched off in the server."""
    gc.collect()
    gc.disable()
    try:
        for end in (LifecycleSession.end_of_input, LifecycleSession.close):
            stream = Stream()
            for _ in range(3):
                stream.send(**work, **FETCH)
                stream.calls.answer(*results, [fetched("x")])
                stream.session.delivered()
            end(stream.session)
            del stream
        assert gc.collect() == 0
    finally:
        gc.enable()
