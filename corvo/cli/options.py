"""Shared parts of commands: common flags, parameter types and the session."""

import functools
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import Client
from corvo.errors import ValidationError
from corvo.limits import SECOND_NS
from corvo.platform import logging_setup
from corvo.platform.durations import parse_duration

DEFAULT_SERVER = "http://localhost:8080"
TIMEOUT_S = 60

T = TypeVar("T")
Function = Callable[..., None]


class Duration(click.ParamType[float]):
    """A duration: `1h30m`, `500ms`, `7d` or a number of seconds; the value is seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert to seconds, or fail with a usage error."""
        if isinstance(value, int | float):
            return value
        try:
            length_ns = parse_duration(str(value).removeprefix("+"), "it")
        except ValidationError as e:
            self.fail(e.message, param, ctx)
        seconds, rest_ns = divmod(length_ns, SECOND_NS)
        return seconds + rest_ns / SECOND_NS if rest_ns else seconds


class JsonText(click.ParamType[msgspec.Raw]):
    """A JSON value: literal text, `-` for standard input, or `@FILE`; sent byte for byte."""

    name = "json"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> msgspec.Raw:
        """Return the validated JSON text, or fail with the position of the error."""
        if isinstance(value, msgspec.Raw):
            return value
        data = self._read(str(value), param, ctx)
        try:
            msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            hint = "; a text needs its own quotes, such as '\"text\"'" if _is_word(data) else ""
            self.fail(f"not valid JSON: {e}{hint}", param, ctx)
        return msgspec.Raw(data.strip())

    def _read(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if text == "-":
            return sys.stdin.buffer.read()
        if text.startswith("@"):
            try:
                return Path(text[1:]).read_bytes()
            except OSError as e:
                self.fail(f"{text[1:]}: {e.strerror}", param, ctx)
        return text.encode()


def _is_word(data: bytes) -> bool:
    return data[:1].isalpha()


class Tags(JsonText):
    """Tags: `KEY=VALUE`, several of them separated by commas, or a JSON object as of `JsonText`."""

    name = "tags"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> msgspec.Raw:
        """Return a JSON object, or fail with a usage error."""
        text = str(value).strip()
        if isinstance(value, msgspec.Raw) or text[:1] in ("{", "-", "@"):
            return super().convert(value, param, ctx)
        pairs = {}
        for item in text.split(","):
            name, equals, tag = item.partition("=")
            if not name or not equals:
                self.fail(f"want KEY=VALUE or a JSON object, not {text}", param, ctx)
            pairs[name] = tag
        return msgspec.Raw(msgspec.json.encode(pairs))


class Moment(click.ParamType[str]):
    """A time: RFC 3339, a date, or a duration from now: `+90m` is ahead, `-2h` is ago.

    A duration without a sign has the direction that its option implies. The value is RFC 3339."""

    name = "time"

    def __init__(self, ahead: bool) -> None:
        self._ahead = ahead

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Convert to RFC 3339, or fail with a usage error; the server validates RFC 3339 input."""
        text = str(value)
        if text[:1].isdigit() and "T" in text.upper():
            return text
        try:
            if text.count("-") == 2:
                return datetime.strptime(text, "%Y-%m-%d").strftime("%Y-%m-%dT00:00:00Z")
            length_s = self.offset_s(text)
            if length_s is None:
                raise ValueError(text)
            at = datetime.now(UTC) + timedelta(seconds=length_s)
            return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        except (ValueError, OverflowError):
            self.fail(f"{text} is not a time, a date, or a duration such as 7d", param, ctx)

    def offset_s(self, text: str) -> float | None:
        """The seconds from now to a relative time; None if the text is not one.

        A number needs a unit: it could also be a Unix time."""
        if text[-1:].isdigit():
            return None
        signed = text[:1] in ("+", "-")
        try:
            length_s = parse_duration(text[signed:], "it") / SECOND_NS
        except ValidationError:
            return None
        ahead = text[0] == "+" if signed else self._ahead
        return length_s if ahead else -length_s


class Start(Moment):
    """The earliest start of a job: a `Moment`, or the delay in seconds if it is relative.

    The server counts a delay by its own clock."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return seconds for a relative time ahead, and else RFC 3339."""
        length_s = value if isinstance(value, int | float) else self.offset_s(str(value))
        if length_s is not None:
            return max(0, length_s)
        return super().convert(value, param, ctx)


DURATION = Duration()
JSON = JsonText()
TAGS = Tags()
AGO = Moment(ahead=False)
START = Start(ahead=True)


def confirm(act: str, yes: bool, flag: str = "--yes") -> None:
    """Ask before a command does what cannot be undone; `act` is such as `delete 7 jobs`.

    Without a terminal there is no question: the command is refused."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValidationError(f"use {flag} to {act}")
    if not click.confirm(f"{act[0].upper()}{act[1:]}?", err=True):
        raise ValidationError("not confirmed; nothing was changed")


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


class Session:
    """The client and the output format of one command run."""

    def __init__(self, client: Client, as_json: bool) -> None:
        self.client = client
        self.as_json = as_json

    def show(self, answer: bytes, *plain: str) -> None:
        """Print the response as JSON, or the given plain lines."""
        if self.as_json:
            click.echo(display.json_text(answer or b"null"))
        else:
            display.lines(*plain)

    def decode(self, answer: bytes, kind: type[T]) -> T:
        """Decode a response; see `Client.decode`."""
        return self.client.decode(answer, kind)


log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warn", "error"]),
    default="info",
    show_default=True,
    help="Lowest level of log records on stderr.",
)

_OUTPUT = [
    click.option(
        "--output",
        type=click.Choice(["plain", "json"]),
        default="plain",
        show_default=True,
        help="Output format: plain text, or the server's response as JSON.",
    ),
    click.option("--output-json", is_flag=True, help="Same as --output json."),
]


def output_options(function: Function) -> Function:
    """Add --output and --output-json; the function gets `as_json` as its first argument."""

    @functools.wraps(function)
    def command(output: str, output_json: bool, **arguments: Any) -> None:
        function(output_json or output == "json", **arguments)

    for option in reversed(_OUTPUT):
        option(command)
    return command


def client_options(function: Function, *, with_timeout: bool = True) -> Function:
    """Add the flags of every client command; the function gets a Session as first argument."""

    @output_options
    @functools.wraps(function)
    def command(
        as_json: bool, server: str, cacert: str | None, log_level: str, **arguments: Any
    ) -> None:
        timeout = arguments.pop("timeout") if with_timeout else TIMEOUT_S
        logging_setup.configure(log_level, "text")
        function(Session(Client(server, timeout, cacert), as_json), **arguments)

    log_level_option(command)
    if with_timeout:
        click.option(
            "--timeout",
            type=DURATION,
            default=f"{TIMEOUT_S}s",
            show_default=True,
            help="How long to wait for the server.",
        )(command)
    click.option(
        "--cacert",
        envvar="CORVO_CACERT",
        show_envvar=True,
        metavar="FILE",
        help="CA certificates (PEM) that verify a server with TLS.  [default: those of the system]",
    )(command)
    click.option(
        "--server",
        envvar=["CORVO_URL", "CORVO_SERVER"],
        show_envvar=True,
        metavar="URL",
        default=DEFAULT_SERVER,
        show_default=True,
        help="URL of the server.",
    )(command)
    return command
