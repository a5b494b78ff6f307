"""The command line: one program, with one module per group of commands.

A module is imported when one of its commands is used. Commands print through `corvo.cli.display`,
call the server through `corvo.cli.api`, and raise on failure; `main` turns every failure into one
`Error:` line (or one JSON object) on stderr and exit status 1.

server     corvo server
jobs       enqueue, inspect, retry, cancel, delete
actions    hold, approve, reject, move, requeue, run, priority
inspect    explain, wait, events
logs       log lines of a job
batches    batches
bulk       one action on many jobs
queues     list, pause, drain, limit, clear, destroy, retention
limits     throttle, groups, aging
locks      unique keys
schedules  cron schedules
search     search, dead
watch      live events
worker     fetch, heartbeat, ack, fail, release
cluster    status, workers, and the nodes of a cluster
about      version, completion
bench/     load generator and report
api        HTTP API client of the commands
display    output of the commands
options    flags, parameter types and the session that commands share
command_line   rules that every command follows, such as options before the command
known_queues   refusal of queue names that do not exist
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import click

from corvo import __version__
from corvo.cli import display
from corvo.cli.command_line import Commands
from corvo.errors import CorvoError

# Command -> module of this package that defines it, in the order of --help.
COMMANDS = {
    "server": "server",
    "enqueue": "jobs",
    "inspect": "jobs",
    "explain": "inspect",
    "wait": "inspect",
    "events": "inspect",
    "watch": "watch",
    "logs": "logs",
    "log": "logs",
    "retry": "jobs",
    "cancel": "jobs",
    "delete": "jobs",
    "hold": "actions",
    "approve": "actions",
    "reject": "actions",
    "move": "actions",
    "priority": "actions",
    "requeue": "actions",
    "run": "actions",
    "search": "search",
    "dead": "search",
    "bulk": "bulk",
    "fetch": "worker",
    "heartbeat": "worker",
    "ack": "worker",
    "fail": "worker",
    "release": "worker",
    "batches": "batches",
    "queues": "queues",
    "pause": "queues",
    "resume": "queues",
    "concurrency": "queues",
    "drain": "queues",
    "clear": "queues",
    "destroy": "queues",
    "retention": "queues",
    "locks": "locks",
    "throttle": "limits",
    "groups": "limits",
    "aging": "limits",
    "schedules": "schedules",
    "status": "cluster",
    "cluster": "cluster",
    "workers": "cluster",
    "bench": "bench.bench",
    "completion": "about",
    "version": "about",
}
# With these alone the table of settings need not be loaded.
_USUAL_VARIABLES = {"CORVO_URL", "CORVO_CACERT", "CORVO_LEASE_TOKEN"}


class LazyGroup(Commands):
    """The root command; imports the module of a command when the command is looked up."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse as click does; `--help` prints here."""
        with _reader_may_leave():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command as click does."""
        with _reader_may_leave():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"corvo.cli.{COMMANDS[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, but suggest names from the table for an unknown command."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="corvo %(version)s", help="Show the version and exit.")
@click.pass_context
def root(context: click.Context) -> None:
    """Corvo, a background-job server with an HTTP API.

    Every command has --help. For a first try, start a server, then enqueue and fetch a job from
    another terminal:

    \b
      corvo server
      corvo enqueue mail '{"to": "a@b.c"}'
      corvo fetch mail

    The options --server, --cacert, --timeout, --output and --log-level of a command can also stand
    before it.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _warn_of_misspelled_variables(words: Sequence[str]) -> None:
    """Print a warning for each misspelled variable of the environment. The server logs its own."""
    if words[:1] == ["server"] or display.wants_json(words):
        return
    names = [name for name in os.environ if name.startswith("CORVO_")]
    if set(names) <= _USUAL_VARIABLES:
        return
    from corvo.config import misspelled

    for warning in misspelled(os.environ):
        click.echo(display.visible(f"Warning: {warning}"), err=True)


def _discard_output() -> None:
    """Redirect stdout, so that the flush at exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Exit with status 0 when the reader of the output closes the pipe, as `| head` does.

    It has all that it needs. Click would exit with status 1."""
    try:
        yield
    except BrokenPipeError:
        _discard_output()
        raise click.exceptions.Exit(0) from None


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or 1 after any failure."""
    words = list(sys.argv[1:] if args is None else args)
    if sys.stdout is None:  # the shell has closed it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    _warn_of_misspelled_variables(words)
    try:
        for word in words:
            word.encode()
        status = root.main(words, "corvo", "_CORVO_COMPLETE", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        _discard_output()
        return 0
    except OSError as e:
        _discard_output()
        where = e.filename or "cannot write the output"
        display.error(f"{where}: {e.strerror}", "CLIENT_ERROR", words)
    except click.Abort:
        display.error("interrupted", "INTERRUPTED", words)
    except click.UsageError as e:
        hint = f"Try '{e.ctx.command_path} --help'." if e.ctx is not None else ""
        display.error(e.format_message(), "USAGE_ERROR", words, hint=hint)
    except click.ClickException as e:
        display.error(e.format_message(), "CLIENT_ERROR", words)
    except UnicodeEncodeError:
        display.error("an argument is not valid UTF-8", "USAGE_ERROR", words)
    except CorvoError as e:
        display.error(e.message, e.code, words, fields=e.fields, hint=getattr(e, "hint", ""))
    return 1
