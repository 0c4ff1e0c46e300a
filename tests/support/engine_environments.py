"""Skips or fails a test whose engine is not installed."""

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.sections.engines.keys import SHIPPED
from areal_like.serving.engines.external.installations import EngineDistribution, find_installation
from areal_like.serving.engines.registry import engine_spec

ENGINES = tuple(keys.name for keys in SHIPPED)
CONTRACT = (*ENGINES, "plain")
"""Engines that pass the contract suite: ours, others, and one that a test registers."""
EXTERNAL = tuple(name for name in ENGINES if engine_spec(name).distribution is not None)


def group_of(engine: str, is_slow: bool = False) -> list[pytest.MarkDecorator]:
    """Marks of a test: one worker runs all tests of an engine."""
    return [pytest.mark.xdist_group(engine), *([pytest.mark.slow] if is_slow else [])]


def contract_engines(slow: Collection[str] = ()) -> list[Any]:
    """Parameters of the fixture `one_server`; a test with this list of its own marks those of `slow`."""
    return [pytest.param(engine, marks=group_of(engine, engine in slow)) for engine in CONTRACT]


def only_on(*engines: str) -> pytest.MarkDecorator:
    """Runs the test on these engines alone."""
    each = [pytest.param(engine, marks=group_of(engine)) for engine in engines]
    return pytest.mark.parametrize("one_server", each, indirect=True, scope="session")


def slow_on(*engines: str) -> pytest.MarkDecorator:
    """Runs the test on all engines, on these only with the slow tests."""
    return pytest.mark.parametrize("one_server", contract_engines(engines), indirect=True, scope="session")


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
