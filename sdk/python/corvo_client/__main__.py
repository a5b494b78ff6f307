"""Runs a worker: `python -m corvo_client worker app:app -q emails -c 10 --watch`."""

import argparse
import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corvo_client.context import LogHandler
from corvo_client.errors import CorvoError
from corvo_client.tasks import App
from corvo_client.worker import Worker

_WATCH_S = 0.5


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(
        level=given.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    sys.path.insert(0, os.getcwd())
    if given.watch:
        return _watch([name for name in (arguments or sys.argv[1:]) if name != "--watch"])
    try:
        app = load(given.app)
        if given.server:
            app.connect(given.server.split(","))
        logging.getLogger().addHandler(LogHandler())
        worker = Worker(
            app,
            queues=given.queue,
            concurrency=given.concurrency,
            lease_duration=given.lease,
            shutdown_timeout=given.shutdown_timeout,
            health=given.health,
        )
        logging.info("worker %s: queues %s", worker.worker_id, ", ".join(worker.queues))
        worker.start()
    except (CorvoError, ValueError, ImportError, AttributeError) as error:
        print(f"corvo worker: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m corvo_client")
    commands = parser.add_subparsers(required=True)
    worker = commands.add_parser("worker", help="run the tasks of an app")
    worker.add_argument("app", help="module and name, for example app:app")
    worker.add_argument("-q", "--queue", action="append", help="a queue (default: all of the app)")
    worker.add_argument("-c", "--concurrency", type=int, help="jobs at a time (default: 10)")
    worker.add_argument("-s", "--server", help="URLs with commas between them (default: CORVO_URL)")
    worker.add_argument("--lease", type=float, default=60, help="seconds (default: 60)")
    worker.add_argument("--shutdown-timeout", type=float, default=30, help="seconds (default: 30)")
    worker.add_argument("--health", metavar="HOST:PORT", help="serve GET /healthz there")
    worker.add_argument("--watch", action="store_true", help="restart when a source file changes")
    worker.add_argument("--log-level", default="info", help="debug, info, warning or error")
    return parser


def load(reference: str) -> App:
    """Return the app of `module:name`."""
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in (name or "app").split("."):
        found = getattr(found, part)
    if not isinstance(found, App):
        raise ValueError(f"{reference} is a {type(found).__name__}, not an App")
    return found


def _watch(arguments: list[str]) -> int:
    """Run the worker in a process, and start it again when a source file has changed."""
    stopping: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def stop(number: int, _: Any) -> None:
        stopping.append(number)
        if process is not None:
            process.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while True:
        before = _stamps()
        process = subprocess.Popen([sys.executable, "-m", "corvo_client", *arguments])
        while process.poll() is None and (stopping or _stamps() == before):
            time.sleep(_WATCH_S)
        if stopping:
            return process.wait()
        if process.poll() is None:
            logging.info("a source file has changed: restarting the worker")
            process.send_signal(signal.SIGTERM)
            process.wait()
        else:  # it ended by itself: a change of the sources may mend that
            while not stopping and _stamps() == before:
                time.sleep(_WATCH_S)
            if stopping:
                return process.returncode


def _stamps() -> dict[Path, float]:
    return dict(_sources(Path.cwd()))


def _sources(folder: Path) -> Iterator[tuple[Path, float]]:
    """Yield the Python files under a folder with their times; hidden folders are left out."""
    for root, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"]
        for file in files:
            if file.endswith(".py"):
                path = Path(root, file)
                try:
                    yield path, path.stat().st_mtime
                except OSError:
                    continue


if __name__ == "__main__":
    sys.exit(main())
