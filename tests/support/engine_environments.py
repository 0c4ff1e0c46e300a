"""Skips or fails a test whose engine is not installed."""

import os
import sys
from pathlib import Path

import pytest

ENGINES = ("embedded", "vllm", "sglang")


def require_engine(engine: str) -> str:
    """The Python of its environment, as the launcher finds it. Where there is none the test is skipped, and fails in
    CI."""
    from areal_like.serving.engines.external.installations import find_installation

    if engine == "embedded":
        return sys.executable
    try:
        return find_installation(engine, None, Path.cwd()).python
    except ValueError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
