"""The environments of tests/verifiers_packages, each loaded once by the real package verifiers."""

import os
import sys
from pathlib import Path

import pytest

from areal_like.data.verifiers.environment_process import HostedPackage

VARIABLE = "AREAL_LIKE_VERIFIERS_PYTHON"
PACKAGES = Path(__file__).parents[1] / "verifiers_packages"


def require_verifiers() -> str:
    """The Python with verifiers 0.1. Where there is none the test is skipped, and fails in CI."""
    python = os.environ.get(VARIABLE, "")
    if not os.access(python, os.X_OK):
        missing = f"no Python with verifiers: `make verifiers` makes one; name it in {VARIABLE}"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    assert python != sys.executable
    return python


def package(name: str, **args: object) -> HostedPackage:
    return HostedPackage(f"verifiers:tests/{name}", dict(args), require_verifiers(), (str(PACKAGES), str(PACKAGES)))
