"""Decisions of the core: what is sent, what is repeated, and where to. No socket is opened."""

from typing import Any

import pytest
from corvo_client.api import Api
from corvo_client.core import Core, Reply, Request, Sleep, server, settings, ulid
from corvo_client.errors import (
    LeaseLostError,
    OutcomeUnknownError,
    OverloadedError,
    UnavailableError,
    Unreachable,
)
from corvo_client.sse import SseParser


class Script(Api):
    """A client whose servers answer from a list. It records requests and pauses."""

    def __init__(self, *answers: Any, urls: Any = "http://a:1", **options: Any) -> None:
        super().__init__(urls, [], options)
        self.core = Core(settings(urls, **options), clock=lambda: self.time)
        self.answers = list(answers)
        self.time = 0.0
        self.requests: list[Request] = []
        self.pauses: list[float] = []

    def run(self, steps: Any) -> Any:
        outcome: Any = None
        failed: Any = None
        try:
            while True:
                step = steps.throw(failed) if failed is not None else steps.send(outcome)
                outcome = failed = None
                if isinstance(step, Sleep):
                    self.pauses.append(step.seconds)
                    self.time += step.seconds
                    continue
                assert isinstance(step, Request)
                self.requests.append(step)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if isinstance(answer, Unreachable):
                    failed = answer
                else:
                    outcome = answer
        except StopIteration as stop:
            return stop.value

    def enqueue_once(self) -> Any:
        return self.run(Api.enqueue.steps(self, "q", {"n": 1}))

    def keys(self) -> list[str | None]:
        return [dict(r.headers).get("Idempotency-Key") for r in self.requests]


def reply(status: int, body: str = "{}", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"content-type": "application/json", **named}, body.encode())


def broken(sent: bool = True) -> Unreachable:
    error = Unreachable("broken")
    error.sent = sent
    return error


OK = reply(201, '{"job_id":"job_1","status":"pending","unique_existing":false}')


def test_a_write_is_repeated_with_its_key() -> None:
    client = Script(broken(), reply(503), reply(504, '{"code":"OUTCOME_UNKNOWN"}'), OK)
    assert client.enqueue_once().job_id == "job_1"
    keys = client.keys()
    assert len(keys) == 4 and len(set(keys)) == 1 and keys[0]
    assert {r.body for r in client.requests} == {b'{"queue":"q","payload":{"n":1}}'}
    client.enqueue_once()
    assert client.keys()[4] not in keys


def test_without_a_key_a_write_is_not_sent_twice() -> None:
    client = Script(broken(), OK, idempotency=False)
    with pytest.raises(Unreachable):
        client.enqueue_once()
    assert client.keys() == [None]
    with pytest.raises(OutcomeUnknownError):
        Script(reply(504, '{"code":"OUTCOME_UNKNOWN"}'), OK, idempotency=False).enqueue_once()
    # A request that was never sent, and one that was refused before anything happened, may be.
    client = Script(broken(sent=False), reply(429), OK, idempotency=False)
    assert client.enqueue_once().job_id == "job_1"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500, 507])
def test_other_errors_are_not_repeated(status: int) -> None:
    client = Script(reply(status), OK)
    with pytest.raises(Exception, match=f"HTTP {status}"):
        client.enqueue_once()
    assert len(client.requests) == 1


def test_retry_after_wins() -> None:
    client = Script(reply(429, retry_after="7"), reply(429, '{"retry_after_ms":250}'), OK)
    client.enqueue_once()
    assert client.pauses == [7, 0.25]


def test_attempts_end_with_the_retry_timeout() -> None:
    client = Script(reply(429), retry_timeout=3)
    with pytest.raises(OverloadedError):
        client.enqueue_once()
    assert 3 > client.time > 0.5
    with pytest.raises(OverloadedError):
        Script(reply(429, retry_after="60"), OK).enqueue_once()


def test_servers_rotate() -> None:
    urls = "http://a:1,http://b:2,http://c:3"
    client = Script(broken(), reply(503, '{"code":"NO_LEADER"}'), OK, urls=urls)
    client.enqueue_once()
    client.enqueue_once()
    assert [r.server.host for r in client.requests] == ["a", "b", "c", "c"]
    assert client.pauses[0] == 0  # the next server is tried at once


def test_a_late_failure_does_not_skip_a_server() -> None:
    core = Core(settings("http://a:1,http://b:2"))
    first = core.server
    core.leave(first)
    core.leave(first)
    assert core.server.host == "b"


def test_errors_have_the_facts_of_the_answer() -> None:
    body = '{"error":"gone","code":"LEASE_LOST","job_id":"j"}'
    client = Script(reply(409, body))
    with pytest.raises(LeaseLostError) as caught:
        client.run(Api.ack.steps(client, "j", lease_token="t"))
    assert (caught.value.code, caught.value.status) == ("LEASE_LOST", 409)
    assert caught.value.body["job_id"] == "j"
    with pytest.raises(UnavailableError, match=r"HTTP 503 from http://a:1: <html>"):
        Script(Reply(503, {}, b"<html>"), retry_timeout=0).enqueue_once()


def test_a_newer_code_is_the_error_of_its_status() -> None:
    with pytest.raises(OverloadedError) as caught:
        Script(reply(429, '{"code":"QUOTA_EXCEEDED"}'), retry_timeout=0).enqueue_once()
    assert caught.value.code == "QUOTA_EXCEEDED"


def test_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORVO_API_KEY", "from-env")
    tokens = iter("xy")
    client = Script(OK, token_provider=lambda: next(tokens), namespace="n", headers={"X-A": "b"})
    client.enqueue_once()
    client.enqueue_once()
    first, second = (dict(r.headers) for r in client.requests)
    assert (first["X-API-Key"], first["X-Corvo-Namespace"], first["X-A"]) == ("from-env", "n", "b")
    assert (first["Authorization"], second["Authorization"]) == ("Bearer x", "Bearer y")
    assert first["X-Corvo-Client-Name"] == "corvo-python"


def test_an_empty_key_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORVO_API_KEY", "from-env")
    monkeypatch.setenv("CORVO_URL", "http://a:1, b:2,")
    client = Script(OK, urls=None, api_key="")
    client.enqueue_once()
    assert "X-API-Key" not in dict(client.requests[0].headers)
    assert [server.host for server in client.core.settings.servers] == ["a", "b"]


def test_names_are_one_segment_of_the_path() -> None:
    client = Script(reply(200))
    client.run(Api.get_queue.steps(client, "a/b ü%2F\\1"))
    assert client.requests[0].target == "/api/v1/queues/a%2Fb%20%C3%BC%252F%5C1"
    with pytest.raises(ValueError, match="not empty"):
        client.run(Api.get_queue.steps(client, ""))


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("localhost:80", ("http", "localhost", 80, "")),
        ("https://x", ("https", "x", 443, "")),
        ("http://x/api/v1/", ("http", "x", 80, "")),
        ("http://x/corvo/api/v1", ("http", "x", 80, "/corvo")),
        ("http://[::1]:9", ("http", "::1", 9, "")),
    ],
)
def test_urls(url: str, found: Any) -> None:
    assert server(url) == found


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://u@x", "http://x?y", "http://x:z"])
def test_bad_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|look like|only scheme"):
        server(url)


def test_keys_sort_by_time() -> None:
    keys = [ulid() for _ in range(3)]
    assert {len(key) for key in keys} == {26} and len(set(keys)) == 3


def test_events_arrive_in_any_pieces() -> None:
    data = b"event: a\nid: 1\ndata: x\ndata: y\n\n: hi\nid: 2\n\ndata: z\r\n\r\n"
    for size in (1, 3, len(data)):
        parser = SseParser()
        found = [e for at in range(0, len(data), size) for e in parser.feed(data[at : at + size])]
        assert found == [("a", "x\ny", "1"), ("", "", "2"), ("", "z", None)]
