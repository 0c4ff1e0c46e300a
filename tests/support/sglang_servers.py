"""A real SGLang for tests, started with the command line of a run, but without the rest of a run."""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import PreTrainedModel

import areal_like
from areal_like.config.load import load
from areal_like.process.identity import PROCESS, RUN_ID, TOKEN
from areal_like.process.run_memory import memory_folder
from areal_like.serving.engines.base import WeightUpdate
from areal_like.serving.engines.external.command_line import ServerSite
from areal_like.serving.engines.external.external_engine import NotReady
from areal_like.serving.engines.external.installations import find_installation
from areal_like.serving.engines.sglang.command import sglang_command
from areal_like.serving.engines.sglang.engine import SGLangEngine
from areal_like.weights.disk import publish_weights
from areal_like.weights.index import read_index
from tests.support.engine_environments import distribution, require_engine
from tests.support.engine_program import Program
from tests.support.tiny_models import tiny_qwen3, write_tiny_model

T = TypeVar("T")

SHAPE = {"vocab_size": 60, "hidden_size": 64, "head_dim": 32, "max_position_embeddings": 512}
"""The vocabulary is not round, so that padding by a server is noticed."""
PROMPT = [5, 9, 13, 20, 7, 33, 41, 8]
EXACT = 1e-4
ADAPTERS = ("actor.use_lora=true", "actor.lora_rank=4", "actor.weight_update_mode=adapter")
FEW = ("sglang.max_running_requests=8", "+sglang.extra_args.max_total_tokens=16384")

REPOSITORY = Path(__file__).parents[2]
SECRET = "only-in-tests"
LONGEST_START_S = 180.0
OVERRIDES = (
    *("sglang.context_length=512", "sglang.mem_fraction_static=0.2", "actor.dtype=float32"),
    "sglang.disable_radix_cache=false",
)
"""The prefix cache is on: a weight update must empty it."""


class Server(NamedTuple):
    address: str
    config: Any
    model: Path
    log: Path
    program: Program

    def ask(self, what: Callable[[SGLangEngine], Awaitable[T]]) -> T:
        """With an engine client, as the server has one."""

        async def request() -> T:
            engine = SGLangEngine(self.address, SECRET, self.config, self.model)
            try:
                await engine.ready()
                return await what(engine)
            finally:
                await engine.close()

        return asyncio.run(request())


def reference(seed: int) -> PreTrainedModel:
    return tiny_qwen3(seed, **SHAPE)


def tensors_of(seed: int) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor.detach()) for name, tensor in reference(seed).named_parameters()]


def published(folder: Path, seed: int) -> WeightUpdate:
    made = publish_weights(folder / "weights", seed, tensors_of(seed), None, "test")
    return WeightUpdate(seed, read_index(made), made)


async def bring(engine: SGLangEngine, arrival: WeightUpdate) -> None:
    await engine.stage(arrival)
    await engine.commit(arrival)


@contextmanager
def tiny_sglang(folder: Path) -> Iterator[Server]:
    """With adapters, which do not affect other requests."""
    model = write_tiny_model(folder / "model", **SHAPE)
    with sglang_server(folder, model, *ADAPTERS, *FEW) as running:
        yield running


@contextmanager
def sglang_server(
    folder: Path, model: Path, *words: str, flags: tuple[str, ...] = (), tensor: int = 1
) -> Iterator[Server]:
    python = sglang_python()
    response = ["rollout=sglang", f"sglang.python={python}", f"actor.path={model}", *OVERRIDES, *words]
    config = load(REPOSITORY / "experiments" / "grpo.yaml", response).config
    port = free_port()
    spec = ServerSite(0, "127.0.0.1", port, str(folder), str(model), False, tensor, 1, (), python)
    start = sglang_command(config, spec)
    assert not start.problems, start.problems
    log = folder / "sglang.log"
    with log.open("wb") as output:
        program = Program([*start.command, *flags], {**os.environ, **variables(folder), **start.env}, folder, output)
    try:
        server = Server(f"127.0.0.1:{port}", config, model, log, program)
        _wait_for(server)
        yield server
    finally:
        program.end()
        shutil.rmtree(memory_folder("test"), ignore_errors=True)


def sglang_python() -> str:
    """Python of its environment; without one the test is skipped."""
    require_engine("sglang")
    return find_installation(distribution("sglang"), None, Path.cwd()).python


def variables(folder: Path) -> dict[str, str]:
    """Variables as the server sets them: only our package can be imported."""
    imports = folder / "imports"
    imports.mkdir(exist_ok=True)
    (imports / "areal_like").symlink_to(Path(areal_like.__file__).parent)
    who = {TOKEN: SECRET, PROCESS: "server/0", RUN_ID: "test"}
    return {**who, "PYTHONPATH": str(imports), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _wait_for(server: Server) -> None:
    async def nothing(engine: SGLangEngine) -> None:
        return None

    ends = time.monotonic() + LONGEST_START_S
    while True:
        assert server.program.is_alive, server.log.read_text(errors="replace")[-4000:]
        try:
            return server.ask(nothing)
        except NotReady as not_yet:
            assert time.monotonic() < ends, f"{not_yet}\n{server.log.read_text(errors='replace')[-4000:]}"
            time.sleep(0.5)
