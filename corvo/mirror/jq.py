"""Parser of payload conditions, a small subset of jq.

    expression = condition { "and" condition }
    condition  = path op literal | path "|" test
    op         = "==" | "!=" | ">" | ">=" | "<" | "<="
    literal    = a JSON string, number, true, false or null
    test       = 'startswith("text")' | 'contains("text")' | "length" op number
    path       = "." | segment { segment }
    segment    = "." word | [ "." ] '["key"]' | [ "." ] "[" digits "]"

A literal is compared only with values of its own type. A missing path counts as null: `!=` is true
for every other literal, and all other comparisons are false. `contains` is true for a list with the
text as an element, and for a text with it as a substring. The length of a missing value is 0;
numbers and booleans have no length.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from corvo import limits
from corvo.errors import ValidationError
from corvo.mirror.texts import plain_literal
from corvo.platform.echoes import shown

Literal = str | int | float | bool | None

_BLANKS: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"\.(\w+)")
_BRACKET: Final = re.compile(r"\.?\[\s*")
_INDEX: Final = re.compile(r"(\d{1,9})\s*\]")
_OP: Final = re.compile(r"==|!=|>=|<=|>|<")
_TEST: Final = re.compile(r"\|\s*(startswith|contains|length)\b\s*")
_AND: Final = re.compile(r"and\b")
_UNSUPPORTED_KEY: Final = re.compile(r'["\\\x00-\x1f]')


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the value at a path.

    `test` is empty for a comparison; `op` is empty for startswith and contains."""

    path: tuple[str | int, ...]
    test: str
    op: str
    literal: Literal


def parse(text: str) -> tuple[Condition, ...]:
    """Parse an expression into conditions; raise ValidationError if it is invalid."""
    if not text.strip():
        raise _refused("payload_jq is empty")
    if len(text.encode("utf-8", "replace")) > limits.JQ_SIZE_MAX:
        raise _refused(f"payload_jq is longer than {limits.JQ_SIZE_MAX} bytes")
    return _Parser(text).expression()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def expression(self) -> tuple[Condition, ...]:
        conditions = [self.condition()]
        while self.take(_AND) is not None:
            conditions.append(self.condition())
            if len(conditions) > limits.JQ_CONDITIONS_MAX:
                raise _refused(f"payload_jq has more than {limits.JQ_CONDITIONS_MAX} conditions")
        if self.at != len(self.text):
            raise self.unsupported()
        return tuple(conditions)

    def condition(self) -> Condition:
        path = self.path()
        test = self.take(_TEST)
        if test is None:
            op = self.op()
            literal = self.literal()
            if literal is None and op not in ("==", "!="):
                raise _refused("payload_jq null only supports == and !=")
            return Condition(path, "", op, literal)
        name = test.group(1)
        if name == "length":
            op = self.op()
            literal = self.literal()
            if isinstance(literal, bool | str) or literal is None:
                raise _refused(f"invalid payload_jq literal: {shown(literal)}")
            return Condition(path, name, op, literal)
        self.expect("(")
        literal = self.literal()
        if not isinstance(literal, str):
            raise _refused(f"invalid payload_jq literal: {shown(literal)}")
        self.expect(")")
        return Condition(path, name, "", literal)

    def path(self) -> tuple[str | int, ...]:
        self.skip()
        if not self.text.startswith(".", self.at):
            raise self.unsupported()
        segments: list[str | int] = []
        begin = self.at
        while True:
            word = _WORD.match(self.text, self.at)
            if word is not None:
                segments.append(word.group(1))
                self.at = word.end()
                continue
            bracket = _BRACKET.match(self.text, self.at)
            if bracket is None:
                break
            self.at = bracket.end()
            segments.append(self.subscript())
        if self.at == begin:
            self.at += 1  # the whole payload
        self.skip()
        return tuple(segments)

    def subscript(self) -> str | int:
        index = _INDEX.match(self.text, self.at)
        if index is not None:
            self.at = index.end()
            return int(index.group(1))
        if not self.text.startswith('"', self.at):
            raise self.unsupported()
        key = self.literal()
        assert isinstance(key, str)
        if _UNSUPPORTED_KEY.search(key):
            raise _refused(f"payload_jq does not support the key {shown(key)}")
        self.expect("]", skip=False)
        return key

    def op(self) -> str:
        found = self.take(_OP)
        if found is None:
            raise self.unsupported()
        return found.group()

    def literal(self) -> Literal:
        rest = self.text[self.at :]
        try:
            value, size = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            raise _refused(f"invalid payload_jq literal: {shown(rest[:64])}") from None
        if isinstance(value, list | dict):
            raise _refused(f"invalid payload_jq literal: {shown(rest[:64])}")
        self.at += size
        self.skip()
        literal: Literal = plain_literal(value) if isinstance(value, str) else value
        return literal

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
            self.skip()
        return found

    def expect(self, mark: str, skip: bool = True) -> None:
        if not self.text.startswith(mark, self.at):
            raise self.unsupported()
        self.at += 1
        if skip:
            self.skip()

    def skip(self) -> None:
        blanks = _BLANKS.match(self.text, self.at)
        assert blanks is not None
        self.at = blanks.end()

    def unsupported(self) -> ValidationError:
        return _refused(f"unsupported payload_jq expression at character {self.at + 1}")


def _refused(message: str) -> ValidationError:
    return ValidationError(message, field="payload_jq")


def _no_constant(name: str) -> float:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
