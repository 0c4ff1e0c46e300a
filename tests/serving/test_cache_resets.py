"""A weight update resets the engine's prompt cache: which calls, in which order."""

import asyncio
from typing import Any

from areal_like.serving.engines.base import WeightUpdate
from areal_like.serving.engines.sglang.engine import SGLangEngine
from areal_like.serving.engines.vllm.engine import VLLMEngine
from areal_like.weights.disk import publish_weights
from areal_like.weights.index import read_index
from tests.support.planning import loaded
from tests.support.tiny_models import tiny_qwen3


class Calls:
    """Answers as an engine does that has done what it was asked."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []

    async def post(self, path: str, body: Any = None) -> Any:
        self.made.append((path, body))
        return {"results": [{}], "success": True}

    async def read(self, _method: str, path: str, body: Any = None) -> bytes:
        self.made.append((path, body))
        return b""

    async def close(self) -> None:
        pass


def arrival(folder) -> WeightUpdate:
    made = publish_weights(folder / "weights", 3, list(tiny_qwen3(1).named_parameters()), None, "test")
    return WeightUpdate(3, read_index(made), made)


def test_vllm_drops_cached_prompts_after_an_update(tmp_path):
    engine, calls = VLLMEngine("127.0.0.1:1", "", loaded("grpo").config, tmp_path), Calls()
    engine.calls = calls  # type: ignore[assignment]
    asyncio.run(engine.commit(arrival(tmp_path)))
    paths = [path for path, _ in calls.made]
    assert calls.made[0][1]["method"] == "areal_commit"
    assert paths[-1] == "/reset_prefix_cache?reset_running_requests=true&reset_external=true"


def test_sglang_drops_cached_prompts_with_the_load(tmp_path):
    engine, calls = SGLangEngine("127.0.0.1:1", "", loaded("grpo").config, tmp_path, tmp_path), Calls()
    engine.calls = engine._weights._calls = calls  # type: ignore[assignment]
    new = arrival(tmp_path)

    async def updated() -> None:
        await engine.stage(new)
        await engine.commit(new)

    asyncio.run(updated())
    (path, body) = calls.made[-1]
    assert calls.made[0][0].startswith("/flush_cache")
    assert path == "/update_weights_from_disk" and body["flush_cache"] is True
