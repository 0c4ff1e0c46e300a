"""The SGLang process of a real server, for tests of the engine alone, and one started without a server of a run."""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

import areal_like
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
from tests.support.engines import SECRET, SHAPE, LiveServer
from tests.support.planning import loaded
from tests.support.tiny_models import tiny_qwen3

T = TypeVar("T")

PROMPT = [5, 9, 13, 20, 7, 33, 41, 8]
EXACT = 1e-4
LONGEST_START_S = 180.0


class SGLang:
    def __init__(self, address: str, config: Any, model: Path) -> None:
        self.address, self.config, self.model = address, config, model

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


class SGLangAlone(SGLang):
    """That of a server of a run, asked by a client of its own."""

    def __init__(self, live: LiveServer) -> None:
        super().__init__(live.engine_address, live.run.config, live.model_folder)
        self.live = live
        live.tell_changed()


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


def sglang_python() -> str:
    """Python of its environment; without one the test is skipped."""
    require_engine("sglang")
    return find_installation(distribution("sglang"), None, Path.cwd()).python


@contextmanager
def started(folder: Path, model: Path, *words: str, tensor: int = 1) -> Iterator[SGLang]:
    """An SGLang without a server of a run."""
    python = sglang_python()
    config: Any = loaded("grpo", "rollout=sglang", f"sglang.python={python}", f"actor.path={model}", *words).config
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = ServerSite(0, "127.0.0.1", port, str(folder), str(model), False, tensor, 1, (), python)
    start = sglang_command(config, site)
    assert not start.problems, start.problems
    log, run_id = folder / "sglang.log", f"test{os.getpid()}sglang"
    with log.open("wb") as output:
        program = Program([*start.command], os.environ | _variables(folder, run_id) | start.env, folder, output)
    try:
        alone = SGLang(f"127.0.0.1:{port}", config, model)
        _wait_for(alone, program, log)
        yield alone
    finally:
        program.end()
        shutil.rmtree(memory_folder(run_id), ignore_errors=True)


def _variables(folder: Path, run_id: str) -> dict[str, str]:
    """Variables as the server sets them: only our package can be imported."""
    imports = folder / "imports"
    imports.mkdir()
    (imports / "areal_like").symlink_to(Path(areal_like.__file__).parent)
    who = {TOKEN: SECRET, PROCESS: "server/0", RUN_ID: run_id}
    return {**who, "PYTHONPATH": str(imports), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _wait_for(alone: SGLang, program: Program, log: Path) -> None:
    async def nothing(engine: SGLangEngine) -> None:
        return None

    ends = time.monotonic() + LONGEST_START_S
    while True:
        assert program.is_alive, log.read_text(errors="replace")[-4000:]
        try:
            return alone.ask(nothing)
        except NotReady as not_yet:
            assert time.monotonic() < ends, f"{not_yet}\n{log.read_text(errors='replace')[-4000:]}"
            time.sleep(0.5)
