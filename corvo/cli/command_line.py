"""Rules of the command line that every command follows.

- The options of a command can stand before its name: `corvo --server URL queues`.
- A boolean flag stands alone or has a value: `--wait=false`.
"""

import difflib
from typing import Final

import click

# Options that most commands have -> whether a value follows.
_COMMON: Final = {
    "--server": True,
    "--cacert": True,
    "--timeout": True,
    "--output": True,
    "--output-json": False,
    "--log-level": True,
}


class Commands(click.Group):
    """A group of commands that follows the rules of this module."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move common options that stand before the command behind its name."""
        own, moved, rest = _leading(args)
        if moved and not rest and not own and not ctx.resilient_parsing:
            raise click.UsageError(f"no command follows {moved[0].partition('=')[0]}", ctx)
        if rest:
            rest[1:1] = moved
        return super().parse_args(ctx, own + rest)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, and replace flags with values by plain flags.

        A word that resembles no subcommand is the name for the subcommand `show`."""
        if "show" in self.commands and not difflib.get_close_matches(args[0], self.commands):
            args = ["show", *args]
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            rest = plain_flags(command, rest, ctx)
        return name, command, rest


class ListingGroup(Commands):
    """A command group whose default subcommand is `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `list` when there are no arguments or only options."""
        own, _, rest = _leading(args)
        if (own or not rest) and not set(own) & set(ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def _leading(args: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Split the words of a group: its own options, common options, and the rest, which begins with
    the command."""
    own: list[str] = []
    moved: list[str] = []
    words = list(args)
    while words and words[0].startswith("-") and words[0] != "--":
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if name not in _COMMON:
            own.append(word)
            continue
        moved.append(word)
        if _COMMON[name] and not equals and words:
            moved.append(words.pop(0))
    return own, moved, words


def plain_flags(command: click.Command, args: list[str], ctx: click.Context) -> list[str]:
    """Replace each boolean flag that has a value: `--x=true` becomes `--x`; `--x=false` becomes the
    negative flag, or nothing."""
    options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
    by_name = {name: option for option in options for name in option.opts + option.secondary_opts}
    plain: list[str] = []
    words = list(args)
    while words and words[0] != "--":
        word = words.pop(0)
        name, equals, value = word.partition("=")
        option = by_name.get(name)
        if option is not None and not option.is_flag and not equals and words:
            plain += [word, words.pop(0)]  # the next word is a value, even if it resembles a flag
        elif option is not None and option.is_flag and equals:
            plain += _plain_flag(option, name, value, ctx)
        else:
            plain.append(word)
    return plain + words


def _plain_flag(option: click.Option, name: str, value: str, ctx: click.Context) -> list[str]:
    from corvo.config import parse_flag

    try:
        wanted = parse_flag(value)
    except ValueError as error:
        raise click.UsageError(f"{name} takes {error}, not '{value}'", ctx) from None
    if name in option.secondary_opts:
        wanted = not wanted
    names = option.opts if wanted else option.secondary_opts
    return names[:1]
