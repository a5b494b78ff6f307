"""Rules that every command follows: options before the command, flags with values, the URL of the
server, misspelled variables, and output that nobody reads to its end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from corvo.cli import root
from corvo.cli.command_line import plain_flags
from corvo.platform.environment import CLIENT_VARIABLES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "words",
    [
        "--output json queues",
        "--output=json queues",
        "--output-json queues",
        "--output-json=true queues",
        "--timeout 5s --output json --log-level warn queues",
        "--output json queues mail",
    ],
)
def test_options_stand_before_the_command(run: Any, words: str) -> None:
    status, out, err = run(*words.split())
    assert (status, err) == (0, "") and out.lstrip().startswith(("[", "{"))


def test_options_stand_before_a_subcommand(
    server: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (
        ["--output", "json", "schedules"],
        ["schedules", "--output", "json", "list"],
        ["--output", "json", "schedules", "list"],
        ["schedules", "--output", "json"],
    ):
        server.can("GET", "/api/v1/schedules?limit=1000", [])
        assert run(*words).out == "[]\n", words
    monkeypatch.setenv("CORVO_URL", "http://127.0.0.1:1")  # the option wins
    answer = run("--server", server.url, "cluster", "--output", "json", "status")
    assert answer.status == 0 and '"mode": "single"' in answer.out


def test_options_without_a_command(run: Any) -> None:
    assert run("--server", "http://x").err.startswith("Error: no command follows --server\n")
    assert run("--log-level", "warn", "--help").out.startswith("Usage: corvo ")
    assert "No such option '--output'" in run("--output", "json", "server").err


@pytest.mark.parametrize(
    ("words", "plain"),
    [
        ("--wait=true", "--wait"),
        ("--wait=false", "--no-wait"),
        ("--no-wait=false", "--wait"),
        ("--no-wait=1", "--no-wait"),
        ("--force=false x", "x"),
        ("--force=YES", "--force"),
        ("--note --force=true", "--note --force=true"),
        ("--note=--force=true -- --force=true", "--note=--force=true -- --force=true"),
    ],
)
def test_a_flag_takes_a_value(words: str, plain: str) -> None:
    options = [click.Option(["--wait/--no-wait"]), click.Option(["--force"], is_flag=True)]
    command = click.Command("x", params=[*options, click.Option(["--note"])])
    assert plain_flags(command, words.split(), click.Context(command)) == plain.split()


def test_flags_of_commands_take_values(server: Any, run: Any) -> None:
    server.can("POST", "/api/v1/queues/q/drain", {})
    assert run("drain", "q", "--wait=false").out == "Queue q draining\n"
    server.can("POST", "/api/v1/jobs/j1/cancel", {"status": "cancelled"})
    assert run("cancel", "j1", "--force=true").status == 0
    assert server.bodies[-1] == {"force": True}
    server.can("DELETE", "/api/v1/queues/q?confirm=true", {})
    assert run("destroy", "q", "--yes=true").status == 0
    refused = run("drain", "q", "--wait=maybe")
    assert refused.err.startswith("Error: --wait takes true or false, not 'maybe'\n")


def test_a_name_stands_for_show(server: Any, run: Any) -> None:
    server.can("GET", "/api/v1/schedules/nightly", {"name": "nightly", "id": "s1", "queue": "q"})
    assert run("schedules", "nightly").out.startswith("nightly (s1) -> q\n")
    server.can("GET", "/api/v1/batches/batch_1", {"id": "batch_1"})
    assert run("batches", "batch_1").status == 0
    assert "Did you mean 'create'?" in run("schedules", "creat").err


@pytest.mark.parametrize("path", ["/", "/api/v1", "/api/v1/", "/api/v1/queues?x", " "])
def test_the_path_of_the_api_is_part_of_no_url(server: Any, run: Any, path: str) -> None:
    words = ("queues", "--server", server.url + path.replace("?x", ""))
    assert run(*words).status == 0
    assert server.requests[0][1] == "/api/v1/queues?limit=1000"


def test_a_prefix_of_a_proxy_stays(server: Any, run: Any) -> None:
    server.can("GET", "/corvo/api/v1/queues?limit=1000", {"queues": []})
    assert run("queues", "--server", f"{server.url}/corvo/api/v1").status == 0


@pytest.mark.parametrize("url", ["http://u:p@x", "http://x?a=b", "http://x#y"])
def test_parts_of_a_url_that_would_be_ignored(run: Any, url: str) -> None:
    assert f'--server "{url}" must be only' in run("queues", "--server", url).err


def test_corvo_server_is_the_url_too(
    server: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CORVO_URL")
    monkeypatch.setenv("CORVO_SERVER", server.url)
    assert run("queues").status == 0


def test_a_misspelled_variable(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORVO_SERVR", "http://x")
    monkeypatch.setenv("CORVO_CACRT", "x")
    status, _, err = run("version")
    assert status == 0
    assert err.splitlines() == [
        "Warning: nothing reads CORVO_CACRT; did you mean CORVO_CACERT?",
        "Warning: nothing reads CORVO_SERVR; did you mean CORVO_SERVER?",
    ]
    assert run("version", "--output", "json").err == ""


def test_all_variables_of_commands_are_known() -> None:
    found = set()
    for command in subcommands(root):
        for param in command.params:
            found |= {param.envvar} if isinstance(param.envvar, str) else set(param.envvar or ())
    assert found == set(CLIENT_VARIABLES)


def subcommands(command: click.Command) -> Iterator[click.Command]:
    """A command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from subcommands(child)


def test_a_ca_file_that_is_none(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    words = ("queues", "--server", "https://127.0.0.1:1", "--cacert", str(file))
    assert run(*words).err == f"Error: --cacert {file}: No such file or directory\n"
    file.write_text("no certificate")
    assert run(*words).err == f"Error: --cacert {file} holds no PEM certificate\n"


def test_tls_to_a_server_without_it(server: Any, run: Any) -> None:
    err = run("queues", "--server", server.url.replace("http:", "https:")).err
    assert err.startswith("Error: request failed: ") and "use http://" in err


def corvo(server: Any, text: str) -> "subprocess.CompletedProcess[str]":
    """Run a shell line in which $corvo is the command."""
    own = {"CORVO_URL": server.url, "PYTHONPATH": str(ROOT)}
    own |= {"corvo": f"{sys.executable} -m corvo"}
    command = ["bash", "-c", f"set -o pipefail; {text}"]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | own)


@pytest.mark.parametrize("words", ["queues", "--help", "search --all", "completion bash"])
def test_a_reader_may_leave(server: Any, words: str) -> None:
    page = {"jobs": [], "has_more": False}
    job = {"id": "j1", "state": "dead", "queue": "q", "attempt": 1, "created_at": ""}
    server.can("POST", "/api/v1/jobs/search", page | {"jobs": [job]})
    done = corvo(server, f"$corvo {words} | true")
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_cannot_be_written(server: Any) -> None:
    full = corvo(server, "$corvo queues > /dev/full")
    assert full.returncode == 1
    assert full.stderr == "Error: cannot write the output: No space left on device\n"
    closed = corvo(server, "$corvo queues >&-")
    assert (closed.returncode, closed.stderr) == (0, "")
    failed = corvo(server, "$corvo inspect none | true")
    assert failed.returncode == 1


def test_help_names_the_options_before_a_command(run: Any) -> None:
    assert "--server" in run("--help").out
