"""Every snippet of the README runs, and its tables name what exists."""

import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import corvo_client
import pytest
from corvo_client.__main__ import _parser
from corvo_client.api import Api
from corvo_client.context import Context
from corvo_client.core import ClientOptions
from corvo_client.endpoints import Routine, Stream
from corvo_client.testing import Server

SDK = Path(__file__).parents[1]
README = (SDK / "README.md").read_text("utf-8")
SECTION = re.compile(r"^## (\d+)\. (.+?)$(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTIONS = {match[1]: match[3] for match in SECTION.finditer(README)}
APP = re.search(r"# app\.py\n.*?(?=^```)", README, re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[tuple[str, str]]:
    """Section and text of each block."""
    return [
        (number, text)
        for number, section in SECTIONS.items()
        for found, text in BLOCK.findall(section)
        if found == language
    ]


def environment(server: Server) -> dict[str, str]:
    path = f"{SDK}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    # A build of the wheel leaves an entry point here, which would load the plugin a second time.
    no_entry_points = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**os.environ, **no_entry_points, "CORVO_URL": server.url, "PYTHONPATH": path}


@pytest.fixture
def folder(tmp_path: Path, corvo: Server) -> Path:
    """A folder with the app of the quickstart."""
    assert APP is not None
    (tmp_path / "app.py").write_text(APP[0].replace('"http://localhost:8080"', ""))
    return tmp_path


def run(folder: Path, server: Server, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_ten_sections() -> None:
    assert list(SECTIONS) == [str(number) for number in range(1, 11)]
    assert {language for language, _ in BLOCK.findall(README)} == {"python", "sh"}


def test_the_quickstart(folder: Path, corvo: Server) -> None:
    (command,) = [text for number, text in blocks("sh") if number == "2"]
    words = shlex.split(command)
    worker = subprocess.Popen([sys.executable, *words[1:]], cwd=folder, env=environment(corvo))
    try:
        snippet = next(text for number, text in blocks("python") if text.startswith("from app"))
        assert "sent Hello to a@example.com" in run(folder, corvo, "-c", snippet)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)


SNIPPETS = [
    pytest.param(text, id=f"section-{number}-{place}")
    for place, (number, text) in enumerate(blocks("python"))
    if number != "2" and not text.startswith("# ")
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet(snippet: str, folder: Path, corvo: Server) -> None:
    if "@app.task" in snippet or "@app.handler" in snippet:
        snippet += "\n\nif __name__ == '__main__':\n"
        snippet += "    from corvo_client import Worker\n    Worker(app).drain()\n"
    (folder / "snippet.py").write_text(snippet)
    run(folder, corvo, "snippet.py")


def test_the_test_of_a_user(folder: Path, corvo: Server) -> None:
    (text,) = [text for _, text in blocks("python") if text.startswith("# test_app.py")]
    (folder / "test_app.py").write_text(text)
    command = ("-m", "pytest", "-q", "-p", "corvo_client.pytest_plugin", "-p", "no:cacheprovider")
    assert "2 passed" in run(folder, corvo, *command, "--rootdir", str(folder))


def test_the_example_of_the_main_page(folder: Path, corvo: Server) -> None:
    page = (SDK.parents[1] / "README.md").read_text("utf-8")
    ((_, text),) = BLOCK.findall(page)
    (folder / "app.py").write_text(text.replace('"http://localhost:8080"', ""))
    call = re.search(r"`(send\.enqueue\(.*?\)\.wait)\(\)`", page)
    assert call is not None
    code = f"from app import *; import corvo_client as c; job = {call[1].removesuffix('.wait')}"
    code += "; c.Worker(app).drain(); print(job.wait(5))"
    assert run(folder, corvo, "-c", code) == "sent to ada@example.com\n"


def test_commands_parse() -> None:
    commands = [shlex.split(line) for _, text in blocks("sh") for line in text.splitlines()]
    assert len(commands) == 3
    for words in commands:
        if words[:2] == ["pip", "install"]:
            assert words[2:] == ["corvo-client"]
        else:
            assert words[:3] == ["python", "-m", "corvo_client"]
            _parser().parse_args(words[3:])


def test_the_reference_names_every_method() -> None:
    named = set(re.findall(r"`(\w+)`", SECTIONS["10"])) - {"Client", "AsyncClient"}
    kinds = (Routine, Stream)
    methods = {name for name, item in vars(Api).items() if isinstance(item, kinds)}
    assert named == methods | {"server_duration"}


def test_what_is_named_exists() -> None:
    exceptions = set(re.findall(r"`(\w+)\([^`]*\)` \|", SECTIONS["5"]))
    assert exceptions == {"Retry", "Discard", "Snooze", "Hold", "ExitChain"}
    assert all(hasattr(corvo_client, name) for name in exceptions)
    members = set(re.findall(r"`(\w+)(?:\(\))?`", SECTIONS["6"].partition("| member")[2]))
    for name in members - {"LogHandler", "logging"}:
        assert hasattr(Context, name) or name in inspect.getsource(Context.__init__), name
    options = set(re.findall(r"`([a-z_]+)`", SECTIONS["7"].partition("Options are")[2]))
    assert options and options <= set(ClientOptions.__annotations__)
