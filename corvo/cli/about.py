"""Commands about the program itself: version, completion."""

import platform

import click
import msgspec
from click.shell_completion import get_completion_class

import corvo
from corvo.cli import display
from corvo.cli.options import output_options


@click.command()
@output_options
def version(as_json: bool) -> None:
    """Print the version of this program."""
    facts = {
        "version": corvo.__version__,
        "api_version": corvo.API_VERSION,
        "python": platform.python_version(),
    }
    if as_json:
        click.echo(display.json_text(msgspec.json.encode(facts)))
    else:
        click.echo("corvo {version} (API {api_version}, Python {python})".format(**facts))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    For bash, save it in the completion directory:

    \b
    cd ~/.local/share/bash-completion/completions
    corvo completion bash > corvo
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "corvo", "_CORVO_COMPLETE").source())
