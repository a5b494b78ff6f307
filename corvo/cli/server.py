"""`corvo server`; its flags are generated from the settings table in `corvo.config`."""

import os

import click

from corvo import config
from corvo.errors import ConfigError


def _visible(option: config.Option) -> list[click.Option]:
    """The flags of a setting. A boolean flag can stand alone, take a value, or be negated."""
    facts = [f"env: {option.env}", *([f"default: {option.default}"] if option.default else [])]
    text = f"{option.help}  [{'; '.join(facts)}]"
    name = f"--{option.name}"
    if not option.is_flag:
        kind = option.name.rpartition("-")[2].upper()
        return [click.Option([name], metavar=kind, help=text, multiple=option.repeats)]
    switch = click.Option(
        [name], is_flag=False, flag_value="true", metavar="[true|false]", help=text
    )
    negated = click.Option(
        [f"--no-{option.name}"],
        is_flag=True,
        hidden=option.default == "false",
        help=f"Same as {name}=false.",
    )
    return [switch, negated]


def _hidden(name: str) -> click.Option:
    """A flag that is accepted but not listed: an older name, or one of another version."""
    return click.Option([f"--{name}"], is_flag=False, flag_value="true", hidden=True)


def _serve(**given: str | bool | tuple[str, ...] | None) -> int:
    flags: dict[str, str] = {}
    for name in (*config.NAMES, config.CONFIG_OPTION.name):
        value = given[name.replace("-", "_")]
        if isinstance(value, tuple):
            if value:
                flags[name] = ",".join(value)
        elif value is not None:
            flags[name] = str(value)
    for option in config.OPTIONS:
        if option.is_flag and given["no_" + option.name.replace("-", "_")]:
            flags[option.name] = "false"
    try:
        settings = config.load(flags, os.environ)
    except ConfigError:
        for warning in config.misspelled(os.environ):  # a possible cause
            click.echo(f"Warning: {warning}", err=True)
        raise
    from corvo.node.node import run

    return run(settings)


server = click.Command(
    "server",
    callback=_serve,
    help="""Run a server until Ctrl-C or SIGTERM.

    A setting is taken from the first source that has it: flag, environment
    variable, TOML file (--config), default.
    """,
    params=[
        *(flag for option in config.OPTIONS for flag in _visible(option)),
        click.Option(
            [f"--{config.CONFIG_OPTION.name}"],
            metavar="FILE",
            help=f"{config.CONFIG_OPTION.help}  [env: {config.CONFIG_OPTION.env}]",
        ),
        *(
            _hidden(name)
            for name in config.NAMES
            if name not in {option.name for option in config.OPTIONS}
        ),
    ],
)
