"""Shared parts of commands: common flags, parameter types and the session."""

import functools
import sys
from collections.abc import Callable
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
            length_ns = parse_duration(str(value), "it")
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
            self.fail(f"not valid JSON: {e}", param, ctx)
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


DURATION = Duration()
JSON = JsonText()


class ListingGroup(click.Group):
    """A command group whose default subcommand is `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `list` when there are no arguments or only options."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        ctx.default_map = dict.fromkeys(self.commands, ctx.default_map)
        return super().parse_args(ctx, args)


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
    def command(as_json: bool, server: str, log_level: str, **arguments: Any) -> None:
        timeout = arguments.pop("timeout") if with_timeout else TIMEOUT_S
        logging_setup.configure(log_level, "text")
        function(Session(Client(server, timeout), as_json), **arguments)

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
        "--server",
        envvar="CORVO_URL",
        show_envvar=True,
        metavar="URL",
        default=DEFAULT_SERVER,
        show_default=True,
        help="URL of the server.",
    )(command)
    return command
