"""The conformance cases of all SDKs, with both clients of this one."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corvo_client.testing import Server

FOLDER = Path(__file__).parents[2] / "conformance"
RUNNER = Path(__file__).with_name("conformance_runner.py")


def module(name: str) -> Any:
    """Load a module of the conformance folder, which is no package."""
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


run = module("run")
CASES: list[dict[str, Any]] = run.load()


def uses_worker(case: dict[str, Any]) -> bool:
    return any(step["do"] == "work" for step in case["steps"])


@pytest.fixture(scope="module", params=["sync", "async"])
def harness(request: pytest.FixtureRequest, corvo_server: Server) -> Iterator[Any]:
    with run.Harness(corvo_server, [sys.executable, str(RUNNER), request.param]) as made:
        made.kind = request.param
        yield made


@pytest.mark.parametrize("case", CASES, ids=[case["name"].replace(" ", "-") for case in CASES])
def test_case(harness: Any, case: dict[str, Any]) -> None:
    if harness.kind == "async" and uses_worker(case):
        pytest.skip("there is one kind of worker")
    faults = harness.faults_of(case)
    assert not faults, "\n".join(faults)


def test_a_wrong_report_is_found() -> None:
    expected = {"ok": {"a": 1, "b": {"c": [1]}}}
    assert list(run.differences({"ok": {"a": 1, "b": {"c": [1]}, "new": 2}}, expected, "x")) == []
    for wrong in ({"ok": {"a": 2, "b": {"c": [1]}}}, {"ok": {"a": 1}}, {"error": "X"}):
        assert list(run.differences(wrong, expected, "x")), wrong
    arrived = [run.Arrived("POST /enqueue", {"idempotency-key": key}, b"") for key in "ab"]
    assert list(run.counted({"requests": {"POST /*": 2}}, arrived)) == []
    assert list(run.counted({"requests": {"POST /*": 1}}, arrived))
    assert list(run.counted({"same_key": ["POST /enqueue"]}, arrived))
    assert list(run.counted({"gap_s": {"POST /enqueue": 1}}, arrived))
