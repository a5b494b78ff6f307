"""Fixtures of the process tests."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from lib.harness import Api, ServerProcess, running_server

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with a settable clock for all tests of a module (each uses its own queues)."""
    with running_server(tmp_path_factory.mktemp("corvo") / "data", "--test-clock") as server:
        yield server


@pytest.fixture
def api(shared_server: ServerProcess) -> Iterator[Api]:
    """A client of the module's server."""
    client = shared_server.api()
    yield client
    client.close()


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test uses."""
    return f"queue-{next(_numbers)}"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory for a server of the test's own."""
    return tmp_path / "data"
