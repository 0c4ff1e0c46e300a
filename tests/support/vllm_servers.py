"""A real vLLM for tests, started and called as in a run."""

import asyncio
import os
import shutil
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

import areal_like
from areal_like.process.identity import PORT, PROCESS, RUN_ID, TOKEN
from areal_like.process.run_memory import memory_folder
from areal_like.serving.engines.base import GenerateOutput, GenerateRequest, WeightUpdate
from areal_like.serving.engines.external.command_line import ServerSite
from areal_like.serving.engines.external.external_engine import NotReady
from areal_like.serving.engines.external.installations import find_installation
from areal_like.serving.engines.vllm.command import vllm_command
from areal_like.serving.engines.vllm.engine import VLLMEngine
from areal_like.weights.disk import publish_weights
from areal_like.weights.index import read_index
from tests.support.engine_environments import distribution, require_engine
from tests.support.engine_program import Program
from tests.support.engines import SECRET, SHAPE, LiveServer
from tests.support.planning import loaded
from tests.support.tiny_models import write_tiny_model

S = TypeVar("S", "Server", "VLLMAlone")

START_S = 300.0
GENTLE_END_S = 2.0
"""The server's value."""


def python() -> str:
    """Python of vLLM's environment; without one the test is skipped."""
    require_engine("vllm")
    return find_installation(distribution("vllm"), None, Path.cwd()).python


class Server:
    """`root` takes the model, the publications and what the server writes."""

    def __init__(self, root: Path, *words: str, model: Path | None = None, tensor: int = 1) -> None:
        self.root = root
        self.model_folder = model or write_tiny_model(root / "model", **SHAPE)
        response: tuple[str, ...] = (
            "rollout=vllm",
            "vllm.max_model_len=512",
            "vllm.max_num_seqs=32",
            "vllm.enable_prefix_caching=true",
        )
        response += ("actor.dtype=float32", f"actor.path={self.model_folder}", f"vllm.python={python()}")
        self.config: Any = loaded("grpo", *response, *words).config
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        spec = ServerSite(0, "127.0.0.1", 0, str(root), str(self.model_folder), False, tensor, 1, (), sys.executable)
        start = vllm_command(self.config, spec)
        self.command = [str(self.port) if word == PORT else word for word in start.command]
        packages = root / "packages"
        packages.mkdir()
        (packages / "areal_like").symlink_to(Path(areal_like.__file__).parent)
        ours = {
            TOKEN: SECRET,
            PROCESS: "server/0",
            RUN_ID: f"test{os.getpid()}vllm",
            "PYTHONPATH": str(packages),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        ours["VLLM_CPU_KVCACHE_SPACE"] = "1"
        self.env = {**os.environ, **start.env, **ours}
        self._log = (root / "log").open("wb")
        self._program: Program | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def engine(self) -> VLLMEngine:
        return VLLMEngine(self.address, SECRET, self.config, self.model_folder)

    def start(self) -> None:
        self._program = Program(self.command, self.env, self.root, self._log)
        _wait_for(self)

    def log(self) -> str:
        return self.whole_log()[-4000:]

    def whole_log(self) -> str:
        return (self.root / "log").read_text(errors="replace")

    @property
    def is_alive(self) -> bool:
        return self._program is not None and self._program.is_alive

    def close(self) -> None:
        if self._program is not None:
            self._program.end(GENTLE_END_S)
        shutil.rmtree(memory_folder(self.env[RUN_ID]), ignore_errors=True)
        self._log.close()


class VLLMAlone:
    """The vLLM of a server of a run, asked by a client of its own."""

    def __init__(self, live: LiveServer) -> None:
        self.live, self.address, self.config = live, live.engine_address, live.run.config
        self.model_folder = live.model_folder
        live.tell_changed()

    def engine(self) -> VLLMEngine:
        return VLLMEngine(self.address, SECRET, self.config, self.live.model_folder)

    def arrival(self, model: PreTrainedModel, version: int) -> WeightUpdate:
        """A publication of these weights."""
        return published(self.live.run.weights, model, version)


def published(root: Path, model: PreTrainedModel, version: int) -> WeightUpdate:
    tensors = [(name, tensor.detach()) for name, tensor in model.named_parameters()]
    folder = publish_weights(root, version, tensors, None, "run")
    return WeightUpdate(version, read_index(folder), folder)


def _wait_for(server: Server) -> None:
    async def main() -> None:
        engine = server.engine()
        try:
            await _until_ready(engine, server)
        finally:
            await engine.close()

    asyncio.run(main())


async def _until_ready(engine: VLLMEngine, server: Server) -> None:
    ends = time.monotonic() + START_S
    while True:
        assert server.is_alive, f"vLLM did not start:\n{server.log()}"
        assert time.monotonic() < ends, f"vLLM was not ready in time:\n{server.log()}"
        try:
            await engine.ready()
            return
        except NotReady:
            await asyncio.sleep(0.2)


def run_with_engine(server: S, test: Callable[[VLLMEngine, S], Awaitable[None]], limit_s: float = 300.0) -> None:
    async def main() -> None:
        engine = server.engine()
        try:
            engine.info = await engine.read_info()
            await asyncio.wait_for(test(engine, server), limit_s)
        finally:
            await engine.close()

    asyncio.run(main())


@contextmanager
def started(root: Path, *words: str, model: Path | None = None, tensor: int = 1) -> Iterator[Server]:
    server = Server(root, *words, model=model, tensor=tensor)
    try:
        server.start()
        yield server
    finally:
        server.close()


async def update(engine: VLLMEngine, arrival: WeightUpdate) -> None:
    """As the server does with paused requests."""
    await engine.stage(arrival)
    await engine.pause("keep")
    await engine.commit(arrival)
    await engine.resume()


def asked(name: str, prompt: list[int], n: int = 1, seed: int = 3, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(name, prompt, n, seed, {"temperature": 1.0, "max_new_tokens": 16, **sampling})


def log_softmax(model: PreTrainedModel, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the vocabulary before each token but the first, by transformers."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    results: torch.Tensor = (logits / temperature).log_softmax(-1)
    return results


def logprobs_of(model: PreTrainedModel, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of every token after the first."""
    return log_softmax(model, ids, temperature).gather(1, torch.tensor(ids)[1:, None])[:, 0]


def apart(
    output: GenerateOutput, prompt: list[int], model: PreTrainedModel, start: int = 0, end: int | None = None
) -> float:
    """Largest difference between the log-probabilities of a partial answer and those of a model."""
    expected = logprobs_of(model, [*prompt, *output.token_ids])[len(prompt) - 1 :]
    results = torch.tensor(output.logprobs)
    return float((expected - results)[start:end].abs().max())
