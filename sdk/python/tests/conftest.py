"""Fixtures of the SDK tests."""

import pytest
from corvo_client import App
from corvo_client.pytest_plugin import corvo, corvo_server  # noqa: F401
from corvo_client.testing import Server


@pytest.fixture
def app(corvo: Server) -> App:  # noqa: F811
    """An app of the server."""
    made = App()
    corvo.connect(made)
    return made
