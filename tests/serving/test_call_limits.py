"""Every call to an engine has a limit, which its error names."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from areal_like.process.errors import HttpError
from areal_like.serving import server
from areal_like.serving.engines.base import EngineGone, GenerateRequest, InferenceEngine
from areal_like.serving.engines.call_limits import LimitedEngine
from areal_like.serving.engines.registry import engine_of
from areal_like.serving.main import server_settings
from tests.ring.server import make_run
from tests.support.external_server import TinyEngine, group, running

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
        call = getattr(LimitedEngine(engine, call_timeout_s=0.01, request_timeout_s=0.02), name)
        given = [REQUEST if name == "generate" else None for _ in inspect.signature(call).parameters]
        with pytest.raises(EngineGone) as late:
            await call(*given)
        limits = "0.02 s (rollout.request_timeout)", "0.01 s (rollout.call_timeout)"
        assert str(late.value).startswith("vllm did not finish ") and str(late.value).endswith(limits)
        assert cancelled.is_set()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_request_that_is_too_late_is_aborted_in_the_engine() -> None:
    async def main() -> None:
        engine = TinyEngine(token_s=30)
        with pytest.raises(EngineGone, match=r"rollout\.request_timeout"):
            await LimitedEngine(engine, 60.0, request_timeout_s=0.02).generate(REQUEST)
        assert engine.log == ["abort 1"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_server_limits_the_calls_to_its_engine_by_the_keys_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "EXIT_DETECTED_S", 0.01)
    run = make_run(tmp_path / "run", "rollout.request_timeout=0.25", "rollout.call_timeout=0.125")
    settings = server_settings(run, engine_of(run))
    limits = settings.request_timeout_s, settings.call_timeout_s

    async def main() -> None:
        engine = TinyEngine(token_s=30)
        async with running(tmp_path, engine, True, *limits) as client:
            client.server.served.mark_verified()
            line = (await client.generate(group("g")))["g"]
            assert line["error"] == "vllm did not finish a request within 0.25 s (rollout.request_timeout)"
            assert engine.log[-1] == "abort 1"
            engine.statistics = lambda: asyncio.sleep(60)  # type: ignore[method-assign,assignment,return-value]
            late = r"vllm did not finish its statistics within 0\.125 s \(rollout\.call_timeout\)"
            with pytest.raises(HttpError, match=late):
                await client.call("GET", "/control/statistics")

    asyncio.run(asyncio.wait_for(main(), 60))
