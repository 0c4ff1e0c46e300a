"""Every call to an engine has a limit, which its error names."""

import asyncio
import inspect
from typing import Any

import pytest

from areal_like.serving.engines.base import EngineGone, GenerateRequest, InferenceEngine
from areal_like.serving.engines.call_limits import LimitedEngine
from tests.support.external_server import TinyEngine

UNLIMITED = ("gone", "close")
"""One waits for the end of the engine, the other comes after it."""
CALLS = [
    name for name, method in inspect.getmembers(InferenceEngine, inspect.iscoroutinefunction) if name not in UNLIMITED
]
REQUEST = GenerateRequest("g", [5], 1, 0, {"max_new_tokens": 1})


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_does_not_end_raises_an_error_with_its_limit(name: str) -> None:
    async def main() -> None:
        engine = TinyEngine()
        cancelled = asyncio.Event()

        async def hangs(*given: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        setattr(engine, name, hangs)
        call = getattr(LimitedEngine(engine, request_timeout_s=0.02, call_timeout_s=0.01), name)
        given = [REQUEST if name == "generate" else None for _ in inspect.signature(call).parameters]
        with pytest.raises(EngineGone) as late:
            await call(*given)
        limits = "0.02 s (rollout.request_timeout)", "0.01 s (CALL_TIMEOUT_S)"
        assert str(late.value).startswith("vllm did not finish ") and str(late.value).endswith(limits)
        assert cancelled.is_set()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_request_that_is_too_late_is_aborted_in_the_engine() -> None:
    async def main() -> None:
        engine = TinyEngine(token_s=30)
        with pytest.raises(EngineGone, match=r"rollout\.request_timeout"):
            await LimitedEngine(engine, request_timeout_s=0.02).generate(REQUEST)
        assert engine.log == ["abort 1"]

    asyncio.run(asyncio.wait_for(main(), 60))
