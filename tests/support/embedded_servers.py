"""A server with a tiny model in the test's process, and clients for it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import torch
from transformers import PreTrainedModel

from areal_like.config.sections.engines.base import EngineKeys
from areal_like.config.sections.engines.keys import EMBEDDED as KEYS
from areal_like.process.http import HttpClient, serve
from areal_like.process.identity import CallGuard, Identity
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.tokenizer import LazyTokenizer
from areal_like.serving.engines.embedded.engine import EmbeddedEngine
from areal_like.serving.server import InferenceServer, ServerSettings
from areal_like.weights.disk import publish_weights
from areal_like.weights.probe import Probe
from tests.support.tiny_models import tiny_qwen3

torch.set_num_threads(1)

SECRET, RUN_ID = "only-in-tests", "run-1"
CONTROLLER = Identity("rollout", 0, attempt=1)
PROMPT = [5, 9, 13, 20]
NOWHERE = Path("no tokenizer")


class Client:
    """`caller` belongs to the run; `session` is a client without a token."""

    def __init__(
        self,
        address: str,
        caller: HttpClient,
        session: aiohttp.ClientSession,
        server: InferenceServer,
        embedded: EmbeddedEngine,
        engine: LLMEngine,
    ) -> None:
        self.address, self.caller, self.session = address, caller, session
        self.server, self.embedded, self.engine = server, embedded, engine

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return await self.caller.json(method, self.address, path, body)

    async def generate(self, *groups: dict[str, object]) -> dict[str, Any]:
        """The lines of the answer by id."""
        body = orjson.dumps({"groups": groups})
        async with self.caller.session.post(f"http://{self.address}/generate", data=body) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "application/x-ndjson"
            lines = [orjson.loads(line) async for line in response.content]
        return {line["id"]: line for line in lines}

    async def open(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        async with self.session.request(method, f"http://{self.address}{path}", json=body) as response:
            return response.status, orjson.loads(await response.read())


@contextlib.asynccontextmanager
async def running(
    folder: Path = NOWHERE, is_open: bool = True, keys: EngineKeys = KEYS, model: PreTrainedModel | None = None
) -> AsyncIterator[Client]:
    """`is_open`: started as by `serve`."""
    engine = LLMEngine(model or tiny_qwen3(), max_running_requests=64, tokenizer=LazyTokenizer(folder), keys=keys)
    embedded, server = embedded_server(engine, is_open)
    served = await serve(server.application(), "127.0.0.1")
    embedded.async_engine.thread.start()
    try:
        async with HttpClient(CONTROLLER, SECRET) as caller, aiohttp.ClientSession() as session:
            yield Client(served.address, caller, session, server, embedded, engine)
    finally:
        await served.close()
        await server.close()
        embedded.async_engine.thread.stop()


def embedded_server(engine: LLMEngine, is_open: bool = True) -> tuple[EmbeddedEngine, InferenceServer]:
    """Their thread does not run yet."""
    embedded = EmbeddedEngine(engine, "builtin:tiny", seed=1)
    settings = ServerSettings(RUN_ID, RUN_ID, "builtin:tiny", NOWHERE, 3600.0, 60.0, is_open)
    return embedded, InferenceServer(embedded, settings, CallGuard(SECRET, 1))


def over_http(
    test: Callable[[Client], Awaitable[None]],
    folder: Path = NOWHERE,
    keys: EngineKeys = KEYS,
    model: PreTrainedModel | None = None,
) -> None:
    async def main() -> None:
        async with running(folder, keys=keys, model=model) as client:
            await asyncio.wait_for(test(client), 60)

    asyncio.run(main())


def published(root: Path, version: int, model: PreTrainedModel, probe: Probe | None = None) -> dict[str, object]:
    tensors = [(name, tensor.detach()) for name, tensor in model.named_parameters()]
    return {"version": version, "folder": str(publish_weights(root, version, tensors, probe, RUN_ID)), "probe": None}


def group(name: str, n: int = 2, seed: int = 3, **sampling: object) -> dict[str, object]:
    return {"id": name, "prompt": PROMPT, "n": n, "seed": seed, "sampling": {"max_new_tokens": 6, **sampling}}


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not become true")


async def turns(client: Client, count: int = 5) -> None:
    """Waits until the engine's thread has run this many iterations."""
    for _ in range(count):
        await asyncio.wrap_future(client.embedded.async_engine.thread.call(lambda: None))


def slow(engine: LLMEngine, step_s: float = 0.02) -> None:
    """Slows each step down, so that tests can act during generation."""
    engine.runner.model.register_forward_pre_hook(lambda *given: time.sleep(step_s))
