"""Runs the conformance cases against an SDK:

python sdk/conformance/run.py [--only TEXT] RUNNER [ARGUMENT ...]
"""

import argparse
import fnmatch
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "python"))

from corvo_client.testing import Server  # noqa: E402
from proxy import Arrived, Proxy  # noqa: E402

PROXIES = 2


def load() -> list[dict[str, Any]]:
    """Return the cases."""
    cases: list[dict[str, Any]] = json.loads((HERE / "cases.json").read_text("utf-8"))
    return cases


class Harness:
    """A server, proxies before it, and the runner of an SDK."""

    def __init__(self, server: Server, runner: list[str]) -> None:
        self.server = server
        self.proxies = [Proxy("127.0.0.1", server.port) for _ in range(PROXIES)]
        self.runner = runner
        self.stack = ExitStack()

    def __enter__(self) -> "Harness":
        for proxy in self.proxies:
            self.stack.enter_context(proxy)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = self.stack.enter_context(
            subprocess.Popen(self.runner, text=True, **pipes)  # type: ignore[call-overload]
        )
        return self

    def __exit__(self, *error: Any) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.stack.__exit__(*error)

    def faults_of(self, case: dict[str, Any]) -> list[str]:
        """Run a case, and return what is wrong with its report."""
        self.server.clear()
        for number, proxy in enumerate(self.proxies):
            proxy.reset([f for f in case.get("faults", ()) if f.get("proxy", 0) == number])
        urls = [proxy.url for proxy in self.proxies[: case.get("urls", 1)]]
        request = {"case": case["name"], "urls": urls, "options": case.get("options", {})}
        self.process.stdin.write(json.dumps({**request, "steps": case["steps"]}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            return [f"the runner ended with status {self.process.wait()}"]
        return list(self._judged(case, json.loads(line)))

    def _judged(self, case: dict[str, Any], report: dict[str, Any]) -> Iterator[str]:
        if report.get("case") != case["name"]:
            yield f"the report is of case {report.get('case')!r}"
            return
        steps = report["steps"]
        if len(steps) != len(case["expect"]):
            yield f"{len(steps)} steps were reported: {steps}"
        for number, (found, expected) in enumerate(zip(steps, case["expect"], strict=False)):
            yield from differences(found, expected, f"step {number}")
        arrived = [request for proxy in self.proxies for request in proxy.arrived]
        yield from counted(case, sorted(arrived, key=lambda request: request.at))
        for read in case.get("after", ()):
            document = self.server.client.get_queue(read["get"].removeprefix("/queues/"))
            yield from differences(dict(document), read["expect"], read["get"])


def differences(found: Any, expected: Any, where: str) -> Iterator[str]:
    """Compare what was found with what is expected; objects may have more members."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            yield f"{where}: {found!r} instead of an object"
            return
        for name, value in expected.items():
            if name not in found and value is not None:
                yield f"{where}: no {name} in {found}"
            else:
                yield from differences(found.get(name), value, f"{where}.{name}")
    elif found != expected:
        yield f"{where}: {found!r} instead of {expected!r}"


def counted(case: dict[str, Any], arrived: list[Arrived]) -> Iterator[str]:
    """Check the requests that arrived."""

    def of(route: str) -> list[Arrived]:
        return [request for request in arrived if fnmatch.fnmatch(request.route, route)]

    for route, count in case.get("requests", {}).items():
        if len(of(route)) != count:
            yield f"{len(of(route))} requests of {route} instead of {count}"
    for route in case.get("same_key", ()):
        keys = {request.headers.get("idempotency-key") for request in of(route)}
        if len(of(route)) < 2 or len(keys) != 1 or None in keys:
            yield f"{len(of(route))} requests of {route} with the keys {keys}"
    for route, gap_s in case.get("gap_s", {}).items():
        times = [request.at for request in of(route)]
        if len(times) < 2 or times[1] - times[0] < gap_s:
            yield f"{route}: requests at {times}, expected {gap_s} s between them"


def main() -> int:
    """Run the cases, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name has this text")
    parser.add_argument("runner", nargs=argparse.REMAINDER, help="command of the runner")
    given = parser.parse_args()
    failed = 0
    with Server() as server, Harness(server, given.runner) as harness:
        for case in load():
            if given.only in case["name"]:
                faults = harness.faults_of(case)
                failed += bool(faults)
                print("FAILED" if faults else "ok    ", case["name"])  # noqa: T201
                for fault in faults:
                    print("       ", fault)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
