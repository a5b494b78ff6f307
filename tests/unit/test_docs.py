"""The documents agree with the code: endpoints, fields, error codes, the unit of systemd."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from lib.route_table import ROUTES

from corvo import errors
from corvo._fast.http.abuse_counters import REASONS
from corvo.engine.commands import inputs
from corvo.net.api import requests

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs/api.md").read_text()
BODIES = [
    kind
    for module in (requests, inputs)
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__ and kind.__name__[0] != "_"
]


def test_every_endpoint_is_documented() -> None:
    for route in ROUTES:
        assert route.name == "/" or f"`{route.method} {route.name}`" in API


@pytest.mark.parametrize("body", BODIES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(body: Any) -> None:
    for field in body.__struct_encode_fields__:
        assert re.search(rf"[`\"]{field}[`\"]", API), field


def test_every_code_is_documented_with_its_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    answered = {(str(k.status), k.code) for k in kinds if getattr(k, "status", 500) != 500}
    assert set(re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", API, re.MULTILINE)) == answered


def test_every_reason_of_refusals_is_documented() -> None:
    page = (ROOT / "docs/operate.md").read_text()
    for reason, text in REASONS.items():
        assert f"| `{reason}` | {text[0].upper()}{text[1:]}. |\n" in page


def test_the_unit_is_the_one_in_tools() -> None:
    unit = (ROOT / "tools/corvo.service").read_text()
    shown = re.search(r"```ini\n(.*?)```", (ROOT / "docs/operate.md").read_text(), re.DOTALL)
    assert shown is not None and shown.group(1) in unit


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
def test_links_lead_somewhere(page: Path | str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_layer_is_in_the_picture() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for line in contract["contracts"][0]["layers"]:
        for module in set(re.findall(r"corvo\.\w+", line)) - {"corvo.__main__"}:
            assert f"`{module}`" in page, module
