"""The table of commands against the modules that define them."""

import click

from corvo.cli import (
    COMMANDS,
    about,
    actions,
    batches,
    bulk,
    cluster,
    inspect,
    jobs,
    limits,
    locks,
    logs,
    queues,
    schedules,
    search,
    server,
    watch,
    worker,
)
from corvo.cli.bench import bench

MODULES = (
    about,
    inspect,
    batches,
    bench,
    bulk,
    cluster,
    limits,
    jobs,
    locks,
    logs,
    actions,
    queues,
    schedules,
    search,
    server,
    watch,
    worker,
)
BELOW = [
    *schedules.schedules.commands.values(),
    *batches.batches.commands.values(),
    *locks.locks.commands.values(),
    *cluster.cluster.commands.values(),
]


def test_every_command_is_in_the_table() -> None:
    defined = {
        name: module.__name__.removeprefix("corvo.cli.")
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, click.Command) and value not in BELOW
    }
    assert defined == COMMANDS


def test_every_flag_and_command_says_what_it_does() -> None:
    for module in MODULES:
        for command in vars(module).values():
            if isinstance(command, click.Command):
                assert command.help
                for option in command.params:
                    shown = isinstance(option, click.Option) and not option.hidden
                    assert not shown or option.help, (command.name, option.name)
