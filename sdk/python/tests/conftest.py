"""Fixtures of the SDK tests."""

from collections.abc import Iterator

import pytest
from corvo_client import App
from corvo_client.pytest_plugin import corvo, corvo_server  # noqa: F401
from corvo_client.testing import Server


@pytest.fixture
def app(corvo: Server) -> Iterator[App]:  # noqa: F811
    """An app of the server."""
    made = App()
    corvo.connect(made)
    yield made
    made.close()
