"""Sandboxes for tests: a kind that does not work on this machine skips its tests, and fails them where CI=true."""

import os

import pytest

from areal_like.process.sandbox.sandbox import sandbox_problem


def require_sandbox(kind: str) -> None:
    if reason := sandbox_problem(kind):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"the sandbox {kind} does not work here: {reason}")
