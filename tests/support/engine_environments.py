"""Skips or fails a test whose engine is not installed."""

import os
import sys
from pathlib import Path

import pytest

from areal_like.config.sections.engines.all_sections import SHIPPED
from areal_like.serving.engines.external.installations import EngineDistribution, find_installation
from areal_like.serving.engines.registry import engine_spec

ENGINES = tuple(keys.name for keys in SHIPPED)
CONTRACT = (*ENGINES, "plain")
"""Engines that pass the contract suite: ours, others, and one that a test registers."""


def distribution(engine: str) -> EngineDistribution:
    found = engine_spec(engine).distribution
    assert found is not None
    return found


def require_engine(engine: str) -> str:
    """The Python of its environment, as the launcher finds it. Where there is none the test is skipped, and fails in
    CI."""
    if engine not in ENGINES or engine_spec(engine).distribution is None:
        return sys.executable
    try:
        return find_installation(distribution(engine), None, Path.cwd()).python
    except ValueError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
