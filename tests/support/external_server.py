"""An external-engine server over real HTTP, with a tiny model in this process.

The model implements the interface of engines; tests can abort it during an answer and make it do wrong.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import torch

from areal_like.process.errors import Failure
from areal_like.process.http import HttpClient, serve
from areal_like.process.identity import CallGuard, Identity
from areal_like.serving.engines.base import (
    ClientAccess,
    EngineGone,
    EngineInfo,
    GenerateOutput,
    GenerateRequest,
    InferenceEngine,
    Verification,
    WeightUpdate,
)
from areal_like.serving.public_proxy import PublicProxy
from areal_like.serving.server import InferenceServer, ServerSettings
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.disk import load_version, publish_weights
from areal_like.weights.fingerprint import tensor_hash
from areal_like.weights.probe import Probe
from tests.support.tiny_models import EOS_ID, VOCAB, tiny_qwen3, write_tiny_model

torch.set_num_threads(1)

SECRET, RUN_ID = "only-in-tests", "run-1"
CONTROLLER = Identity("rollout", 0, attempt=1)
PROMPT = [5, 9, 13, 20]
CONTEXT = 64
LENGTH_KEY = "vllm.max_model_len"


@dataclass
class RequestInFlight:
    request: GenerateRequest
    aborted: bool = False


@dataclass
class TinyEngine(InferenceEngine):
    """`token_s`: time per token. `requests` and `log` record the calls."""

    can_keep: bool = False
    token_s: float = 0.0
    proxy: PublicProxy = field(init=False)
    model: Any = field(default_factory=tiny_qwen3)
    version: int = -1
    requests: list[GenerateRequest] = field(default_factory=list)
    most_at_once: int = 0
    log: list[str] = field(default_factory=list)
    after_commit: Callable[["TinyEngine"], None] = lambda engine: None
    refuses: Callable[[GenerateRequest], None] = lambda request: None
    stopped: bool = False

    def __post_init__(self) -> None:
        self.info = EngineInfo("vllm", "0", "tiny", CONTEXT, VOCAB, (EOS_ID,), dtype="float32", length_key=LENGTH_KEY)
        self.native_pauses = frozenset(("keep",) if self.can_keep else ())
        self.ended: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self.in_flight: dict[str, RequestInFlight] = {}
        self.tokens = 0
        self.adapters: dict[str, Any] = {}
        self._runs = asyncio.Event()
        self._runs.set()
        self._staged: Any = None
        self._known: dict[tuple[str | None, tuple[int, ...]], torch.Tensor] = {}

    async def ready(self) -> EngineInfo:
        return self.info

    async def generate(self, request: GenerateRequest) -> list[GenerateOutput]:
        self._answers()
        self.refuses(request)
        self.requests.append(request)
        in_flight = self.in_flight[request.id] = RequestInFlight(request)
        self.most_at_once = max(self.most_at_once, len(self.in_flight))
        try:
            return [await self._sample(in_flight, number) for number in range(request.n)]
        finally:
            del self.in_flight[request.id]

    async def abort(self, ids: Sequence[str] | None) -> None:
        self._answers()
        self.log.append("abort" if ids is None else f"abort {len(ids)}")
        for name, in_flight in self.in_flight.items():
            in_flight.aborted |= ids is None or name in ids

    async def pause(self, mode: str) -> None:
        self._answers()
        self.log.append("pause")
        self._runs.clear()

    async def resume(self) -> None:
        self.log.append("resume")
        self._runs.set()

    async def stage(self, arrival: WeightUpdate) -> None:
        assert arrival.folder is not None
        expected = {info.name: (info.shape, getattr(torch, info.dtype)) for info in arrival.index.tensors}
        self._staged = load_version(arrival.folder, expected, -2)

    async def commit(self, arrival: WeightUpdate, probe: Probe | None = None) -> None:
        assert not self._runs.is_set() or not self.in_flight, "weights are changed while something is generated"
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in self._staged.tensors.items():
                parameters[name].copy_(tensor)
        self.version = arrival.version
        self._known.clear()
        self.log.append(f"commit {self.version}")
        self.after_commit(self)

    async def discard(self) -> None:
        self._staged = None

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        parameters = dict(self.model.named_parameters())
        return Verification({info.name: tensor_hash(parameters[info.name].detach()) for info in infos})

    async def logprobs(self, token_ids: Sequence[int], adapter: str | None = None) -> list[float]:
        assert self._runs.is_set(), "what is paused computes nothing"
        return logprobs_of(self.adapters.get(adapter or "", self.model), token_ids)

    async def loaded_adapters(self) -> list[str]:
        self._answers()
        return list(self.adapters)

    async def load_adapter(self, name: str, folder: Path) -> None:
        assert name not in self.adapters
        self.log.append(f"load {name}")
        self.adapters[name] = tiny_qwen3(100 + version_in(name))

    async def unload_adapter(self, name: str) -> None:
        assert all(in_flight.request.adapter != name for in_flight in self.in_flight.values()), "it is still used"
        self.log.append(f"unload {name}")
        del self.adapters[name]

    async def statistics(self) -> dict[str, Any]:
        self._answers()
        return {"running": len(self.in_flight), "waiting": 0}

    def client_routes(self, access: ClientAccess) -> Any:
        self.proxy = PublicProxy("127.0.0.1:9", SECRET, None, self.info, access)
        return self.proxy.routes()

    async def gone(self) -> Failure:
        return await self.ended

    async def close(self) -> None:
        if hasattr(self, "proxy"):
            await self.proxy.close()

    def _answers(self) -> None:
        if self.stopped:
            raise EngineGone("the engine does not answer")

    @staticmethod
    def _is_over(in_flight: RequestInFlight) -> bool:
        """Asked again after each wait."""
        return in_flight.aborted

    async def _sample(self, in_flight: RequestInFlight, number: int) -> GenerateOutput:
        request, how = in_flight.request, in_flight.request.sampling
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        while not self._is_over(in_flight):
            await asyncio.sleep(self.token_s)
            await self._runs.wait()
            self._answers()
            if self._is_over(in_flight):
                break
            chances = (self._next(request, tokens) / how.get("temperature", 1.0)).log_softmax(-1)
            allowed = chances.exp()
            if len(tokens) < how.get("min_new_tokens", 0):
                allowed[EOS_ID] = 0
            noise = torch.Generator().manual_seed(hash((request.seed, number, len(tokens))) % (1 << 62))
            token = int(torch.multinomial(allowed, 1, generator=noise))
            tokens.append(token)
            self.tokens += 1
            logprobs.append(float(chances[token]))
            versions.append(self.version)
            if token == EOS_ID or token in how.get("stop_token_ids", ()):
                return self._piece(tokens, logprobs, versions, "stop")
            if len(tokens) == how["max_new_tokens"]:
                return self._piece(tokens, logprobs, versions, "length")
        return self._piece(tokens, logprobs, versions, "abort")

    def _next(self, request: GenerateRequest, tokens: list[int]) -> torch.Tensor:
        """Cached, so that tests can send thousands of equal requests."""
        ids = (request.adapter, (*request.prompt, *tokens))
        if ids not in self._known:
            model = self.model if request.adapter is None else self.adapters[request.adapter]
            self._known[ids] = logits_of(model, ids[1])[-1]
        return self._known[ids]

    def _piece(self, tokens: list[int], logprobs: list[float], versions: list[int], finish: str) -> GenerateOutput:
        return GenerateOutput(tokens, logprobs, finish, versions if self.can_keep else None)


def version_in(name: str) -> int:
    """Of an adapter."""
    return int(name[1:].partition("-")[0])


@torch.no_grad()
def logits_of(model: Any, ids: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()
    return logits


def logprobs_of(model: Any, ids: Sequence[int]) -> list[float]:
    chances = logits_of(model, ids)[:-1].log_softmax(-1)
    return chances.gather(1, torch.tensor(list(ids))[1:, None])[:, 0].tolist()


class Client:
    """A caller of the run, and the server that it calls."""

    def __init__(
        self, address: str, caller: HttpClient, session: aiohttp.ClientSession, server: InferenceServer
    ) -> None:
        self.address, self.caller, self.session, self.server = address, caller, session, server
        self.engine: TinyEngine = server.engine.engine  # type: ignore[assignment]
        self.engine_exit = self.engine.ended

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return await self.caller.json(method, self.address, path, body)

    async def update(self, root: Path, version: int, seed: int, **changes: Any) -> Any:
        return await self.call("POST", "/control/update_weights", published(root, version, seed) | changes)

    async def generate(self, *groups: dict[str, Any]) -> dict[str, Any]:
        """The lines of the answer by id."""
        body = orjson.dumps({"groups": groups})
        async with self.caller.session.post(f"http://{self.address}/generate", data=body) as response:
            assert response.status == 200, await response.text()
            lines = [orjson.loads(line) async for line in response.content]
        return {line["id"]: line for line in lines}


@contextlib.asynccontextmanager
async def running(
    root: Path,
    engine: TinyEngine,
    is_open: bool = True,
    request_timeout_s: float = 3600.0,
    call_timeout_s: float = 60.0,
) -> AsyncIterator[Client]:
    """`is_open`: started as by `serve`."""
    folder = write_tiny_model(root / "model")
    settings = ServerSettings(RUN_ID, RUN_ID, "tiny", folder, request_timeout_s, call_timeout_s, is_open)
    server = InferenceServer(engine, settings, CallGuard(SECRET, 1))
    served = await serve(server.application(), "127.0.0.1")
    try:
        async with HttpClient(CONTROLLER, SECRET) as caller, aiohttp.ClientSession() as session:
            yield Client(served.address, caller, session, server)
    finally:
        await served.close()
        await server.close()
        await engine.close()


def with_server(
    root: Path,
    test: Callable[[Client], Awaitable[None]],
    limit_s: float = 60.0,
    call_timeout_s: float = 60.0,
    **how: Any,
) -> None:
    async def main() -> None:
        async with running(root, TinyEngine(**how), call_timeout_s=call_timeout_s) as client:
            await asyncio.wait_for(test(client), limit_s)

    asyncio.run(main())


def published(root: Path, version: int, seed: int) -> dict[str, Any]:
    """Weights as a trainer publishes them, with a probe."""
    model = tiny_qwen3(seed)
    tensors = [(name, tensor.detach()) for name, tensor in model.named_parameters()]
    folder = publish_weights(root / "weights", version, tensors, Probe(PROMPT, logprobs_of(model, PROMPT)), RUN_ID)
    return {"version": version, "folder": str(folder), "probe": None, "transport": "disk", "mode": "auto"}


def group(name: str, n: int = 1, seed: int = 3, **sampling: Any) -> dict[str, Any]:
    return {"id": name, "prompt": PROMPT, "n": n, "seed": seed, "sampling": {"max_new_tokens": 6, **sampling}}


def check(sample: dict[str, Any], seed_of: Callable[[int], int], prompt: Sequence[int] = PROMPT) -> None:
    """Every token's log-probability is that of the model of its version: no token is lost or doubled."""
    tokens = sample["token_ids"]
    assert len(tokens) == len(sample["logprobs"]) == len(sample["versions"])
    expected = {
        version: logprobs_of(tiny_qwen3(seed_of(version)), [*prompt, *tokens])[len(prompt) - 1 :]
        for version in set(sample["versions"])
    }
    for at, (version, logprob) in enumerate(zip(sample["versions"], sample["logprobs"], strict=True)):
        assert abs(expected[version][at] - logprob) < 1e-3, (at, version)


async def until_tokens(engine: TinyEngine, tokens: int) -> None:
    """Waits for this many more."""
    required = engine.tokens + tokens
    await until(lambda: engine.tokens >= required)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("what was waited for did not happen")
