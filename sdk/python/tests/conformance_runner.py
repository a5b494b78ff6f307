"""Runs conformance cases with the Python SDK; sdk/conformance/README.md has the protocol.

With the argument `async` the calls go through the AsyncClient.
"""

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from corvo_client import (
    App,
    AsyncClient,
    Client,
    Context,
    CorvoError,
    Delivery,
    Discard,
    RawJson,
    Retry,
    Snooze,
    Worker,
)

REPORT_S = 30.0


def resolved(value: Any, results: list[Any]) -> Any:
    """Replace `$2.job_id` by the member of an earlier result, and `x_json` by its text."""
    if isinstance(value, str) and value.startswith("$"):
        number, _, member = value[1:].partition(".")
        return results[int(number)][member]
    if isinstance(value, dict):
        members = {resolved(k, results): resolved(v, results) for k, v in value.items()}
        return {
            name.removesuffix("_json"): RawJson(item) if name.endswith("_json") else item
            for name, item in members.items()
        }
    return value


class Work:
    """A worker whose handler does what the payload says, until enough runs were reported."""

    def __init__(self, app: App, queue: str, jobs: int, cancel: str | None, **options: Any) -> None:
        self.app, self.jobs, self.cancel = app, jobs, cancel
        self.runs: list[tuple[str, int]] = []
        app.register(queue, self.handle)
        self.worker = Worker(app, poll_timeout=2, handle_signals=False, **options)

    def handle(self, job: Delivery, ctx: Context) -> Any:
        self.runs.append((job.payload["name"], job.attempt))
        if len(self.runs) == self.jobs:
            threading.Thread(target=self.stop_when_idle, daemon=True).start()
        if self.cancel is not None:
            self.app.client.cancel_job(self.cancel)
        return self.do(job, ctx)

    def do(self, job: Delivery, ctx: Context) -> Any:
        kind = job.payload["do"]
        if kind == "return":
            return job.payload["value"]
        if kind == "fail":
            raise RuntimeError(job.payload["error"])
        if kind == "discard":
            raise Discard("discarded")
        if kind == "retry":
            if job.attempt == 1:
                raise Retry(after=0)
            return job.attempt
        if kind == "snooze":
            if job.checkpoint:
                return job.checkpoint
            ctx.checkpoint("snoozed")
            raise Snooze(0)
        if kind == "wait_cancel":
            ctx.cancelled.wait(30)
            ctx.raise_if_cancelled()
        if kind == "wait_stop":
            ctx.checkpoint("half")
            self.worker.stop()
            ctx.lost.wait(30)
        return None

    def stop_when_idle(self) -> None:
        """Stop when the last outcome is reported."""
        pause = threading.Event()
        for _ in range(int(REPORT_S / 0.01)):
            if self.worker.health()["active"] == 0:
                break
            pause.wait(0.01)
        self.worker.stop()

    def run(self) -> dict[str, Any]:
        self.worker.start()
        return {"runs": sorted(self.runs)}


def work(case: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a worker; `first` is a payload that is enqueued when it fetches already."""
    app = App(case["urls"], **case["options"])
    first = arguments.pop("first", None)
    arguments.setdefault("cancel", None)
    running = Work(app, **arguments)
    if first is not None:

        def enqueue() -> None:
            while running.worker.health()["status"] == "starting":
                threading.Event().wait(0.01)
            app.client.enqueue(arguments["queue"], first)

        threading.Thread(target=enqueue, daemon=True).start()
    return running.run()


class AwaitedClient:
    """An AsyncClient whose methods block, with one event loop for a case."""

    def __init__(self, urls: list[str], **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = AsyncClient(urls, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        return lambda **arguments: self.loop.run_until_complete(method(**arguments))


def run_case(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the report of each step."""
    results: list[Any] = []
    report: list[dict[str, Any]] = []
    kind: Any = AwaitedClient if "async" in sys.argv[1:] else Client
    client = kind(case["urls"], **case["options"])
    for step in case["steps"]:
        arguments = resolved(step["args"], results)
        try:
            do = step["do"]
            result = work(case, arguments) if do == "work" else getattr(client, do)(**arguments)
        except CorvoError as error:
            results.append(None)
            report.append({"error": error.code or "UNREACHABLE"})
            continue
        results.append(result)
        entry: dict[str, Any] = {"ok": result}
        if texts := step.get("texts"):
            rest = {name: value for name, value in result.items() if name not in texts}
            entry = {"ok": rest, "texts": {name: result.text(name) for name in texts}}
        report.append(entry)
    client.close()
    return report


def main() -> None:
    """Answer each case on standard input."""
    for line in sys.stdin:
        case = json.loads(line)
        report = {"case": case["case"], "steps": run_case(case)}
        print(json.dumps(report), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
