"""What the launcher and the servers know of the embedded engine. Its modules load torch: they are imported on use."""

import gc
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation.models import starts_servers
from areal_like.config.checks.registry import Check
from areal_like.config.problems import Problem, Stage
from areal_like.config.sections.engines.keys import EMBEDDED as KEYS
from areal_like.models import model_folder
from areal_like.process import garbage
from areal_like.process.errors import Failure
from areal_like.serving.engines.embedded.auto_values import auto_values, count_bytes, shared_gpu_values
from areal_like.serving.engines.spec import EngineSpec

if TYPE_CHECKING:
    from areal_like.config.allocation import Allocation
    from areal_like.config.experiment import GRPOConfig
    from areal_like.process.identity import Identity
    from areal_like.process.run import Run
    from areal_like.serving.engines.base import InferenceEngine
    from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine

log = logging.getLogger(__name__)


def _prepare(run: "Run") -> "LLMEngine":
    """Loads the model. The imports take seconds; garbage collection would take a fifth of that time and find nothing,
    since what they make lives until the end."""
    began = time.perf_counter()
    gc.disable()
    from areal_like.serving.engines.embedded.core.load_model import load_engine

    config = run.config.embedded
    try:
        folder = model_folder(config.model_path, run.cwd)
        engine = load_engine(config, folder, run.config.actor.trust_remote_code)
    except (ValueError, OSError) as fault:
        raise Failure(str(fault)) from fault
    garbage.settle()
    gc.enable()
    log.info(
        "%s loaded in %.1f s: up to %d sequences at once, %d tokens of context, a cache of up to %d tokens",
        *(config.model_path, time.perf_counter() - began),
        *(engine.max_running, engine.context_length, engine.cache.limit),
    )
    return engine


@asynccontextmanager
async def _open(run: "Run", me: "Identity", prepared: "LLMEngine") -> "AsyncIterator[InferenceEngine]":
    from areal_like.serving.engines.embedded.engine import EmbeddedEngine

    engine = EmbeddedEngine(prepared, run.config.embedded.model_path, run.config.embedded.seed)
    engine.async_engine.thread.start()
    try:
        yield engine
    finally:
        engine.async_engine.thread.stop()


def _without_gpu(config: "GRPOConfig", allocation: "Allocation", host: Any) -> Iterator[Problem]:
    if config.embedded.device == "cuda" and starts_servers(config) and not allocation.num_gpus:
        reason = f"is cuda, and there is no GPU ({host.machine.how}); set embedded.device=auto"
        yield Problem("embedded.device", reason)


SPEC = EngineSpec(
    KEYS,
    open=_open,
    prepare=_prepare,
    checks=(Check("a GPU for the engine", Stage.MISSING, _without_gpu),),
    autos=auto_values,
    shared_gpu=shared_gpu_values,
    count_bytes=count_bytes,
)
