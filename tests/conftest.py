"""What all tests share: which build they run against, the mutant that is wanted, and how hypothesis
runs."""

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import settings
from lib import known_mutants

known_mutants.install_wanted()

settings.register_profile("corvo", deadline=None)
settings.load_profile("corvo")


def pytest_configure() -> None:
    """Refuse to run against another build than the Makefile asked for (CORVO_BUILD)."""
    wanted = os.environ.get("CORVO_BUILD")
    if wanted is None:
        return
    for name in ("corvo.model", "corvo._fast.metrics"):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        built = "interpreted" if Path(spec.origin).suffix == ".py" else "compiled"
        if built != wanted:
            pytest.exit(f"{name} is {built} ({spec.origin}), wanted {wanted}", returncode=4)
