"""The fixture `corvo` of pytest: one server for all tests, empty for each of them."""

from collections.abc import Iterator

import pytest

from corvo_client.testing import Server


@pytest.fixture(scope="session")
def corvo_server() -> Iterator[Server]:
    """A server for the whole session."""
    with Server() as server:
        yield server


@pytest.fixture
def corvo(corvo_server: Server) -> Server:
    """The server, without queues and schedules."""
    corvo_server.clear()
    return corvo_server
