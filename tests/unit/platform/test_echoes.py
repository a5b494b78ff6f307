"""Input in errors is cut, once and for all."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo.errors import ECHO_SIZE_MAX, MESSAGE_SIZE_MAX, CorvoError, ValidationError, cut
from corvo.net.rpc.status import RpcError
from corvo.platform.echoes import hint, shown


@given(st.text(), st.integers(1, 300), st.integers(3, 250))
def test_texts_are_cut_between_characters(text: str, times: int, size_max: int) -> None:
    whole = (text * times).encode("utf-8", "replace").decode()
    part = cut(whole, size_max)
    if len(whole.encode()) <= size_max:
        assert part == whole
    else:
        assert part.endswith("…") and whole.startswith(part[:-1])
        assert size_max - 4 < len(part.encode()) + 2 and len(part.encode()) <= size_max


def test_half_a_surrogate_pair_can_be_cut() -> None:
    assert cut("\ud800" * 1_000).startswith("???")


@pytest.mark.parametrize(
    "value", ["x", "é", "😀", "\n", "\ud800", 1, 1.5, [1], {"a": "b"}, [["x"]]], ids=repr
)
def test_values_are_shown_short(value: Any) -> None:
    assert shown(value) == json.dumps(value)
    many: Any = value * 5_000 if isinstance(value, str | list) else [value] * 5_000
    assert len(shown(many).encode()) <= ECHO_SIZE_MAX and shown(many).endswith("…")


def test_errors_carry_no_long_input() -> None:
    long = "é" * 10_000
    error = CorvoError(long, field=long, values=[{"path": long, "value": long}, long], limit=5)
    assert len(error.message.encode()) <= MESSAGE_SIZE_MAX
    assert len(RpcError("internal", long).message.encode()) <= MESSAGE_SIZE_MAX
    short = cut(long)
    expected = {"field": short, "values": [{"path": short, "value": short}, short], "limit": 5}
    assert error.fields == expected
    again = ValidationError(error.message, **error.fields)
    assert (again.message, again.fields) == (error.message, error.fields)


def test_a_hint_is_given_for_short_names_only() -> None:
    assert hint("payloads", ["queue", "payload"]) == "; did you mean payload?"
    assert hint("x", ["queue"]) == ""
    assert hint("payload" * 100_000, ["payload"]) == ""
