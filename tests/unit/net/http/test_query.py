"""The query of a request: what is read, and what is refused."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from corvo.errors import ValidationError
from corvo.net.http.query import Query


def query(text: bytes, *known: str) -> Query:
    return Query(cast(Any, SimpleNamespace(query=text, route=SimpleNamespace(query=known))))


def test_values_are_decoded() -> None:
    names = ("queue", "limit", "after", "wait")
    found = query(b"queue=a%2Fb+%C3%A9&limit=7&after=12&wait=1m30s", *names)
    assert found.text("queue") == "a/b é"
    assert (found.limit(), found.seq("after")) == (7, 12)
    assert found.duration_ns("wait", 1, 600) == 90 * 10**9
    assert found.duration_ns("wait", 1, 60) == 60 * 10**9


def test_what_is_absent_has_a_default() -> None:
    found = query(b"")
    assert (found.text("queue"), found.limit(), found.seq("after")) == ("", 100, 0)
    assert found.integer("attempt", 5, 1, 9) == 5
    assert found.duration_ns("wait", 30, 60) == 30 * 10**9
    assert query(b"cursor=&after=", "cursor", "after").seq("after") == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"limt=5", 'unknown query parameter "limt"; did you mean limit?'),
        (b"limit=5&limit=5", "limit is repeated"),
        (b"limit=", "query parameter limit is empty"),
        (b"limit", "must be name=value"),
        (b"&", "must be name=value"),
        (b"limit=%ff", "in UTF-8"),
        (b"limit=\xff", "in UTF-8"),
        (b"&".join(b"limit=%d" % n for n in range(40)), "must be name=value"),
    ],
)
def test_a_malformed_query(text: bytes, message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("?", r"\?")):
        query(text, "limit")


@pytest.mark.parametrize("text", ["0", "1001", "-1", "1.5", "x", "1" * 30, "٣"])
def test_a_number_out_of_its_range(text: str) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in text.encode())
    found = query(f"limit={encoded}".encode(), "limit")
    with pytest.raises(ValidationError, match="whole number from 1 to 1000"):
        found.limit()
