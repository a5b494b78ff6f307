"""Fixtures of the SDK tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from corvo_client import App, Worker
from corvo_client.pytest_plugin import corvo, corvo_server  # noqa: F401
from corvo_client.testing import Server


@pytest.fixture
def app(corvo: Server) -> App:  # noqa: F811
    """An app of the server."""
    made = App()
    corvo.connect(made)
    return made


@contextmanager
def working(app: App, **options: Any) -> Iterator[Worker]:
    """Run a worker in a thread, and stop it at the end."""
    worker = Worker(app, **{"poll_timeout": 5, "shutdown_timeout": 5, **options})
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.start()
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive(), "the worker does not stop"
    assert not failures, failures
