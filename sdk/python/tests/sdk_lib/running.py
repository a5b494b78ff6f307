"""A worker in a thread of the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from corvo_client import App, Worker


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
