"""An engine of one's own: its section, and what the launcher and the servers know of it. Imports no torch, as the
launcher and every process of a run import it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from areal_like import EngineKeys, EngineSpec, register_engine
from areal_like.config.checks.registry import Check
from areal_like.config.experiment import GRPOConfig
from areal_like.config.fields import config, key, section
from areal_like.config.problems import Problem, Stage


@config
class PlainConfig:
    """An engine that computes one token of one answer at a time."""

    model: str = key("")
    """Model to serve. Follows `actor.path`."""

    dtype: str = key("float32")
    """Data type of the weights. Follows `actor.dtype`."""

    max_length: int | None = key(None, ge=1)
    """Maximum length of prompt and answer. Null: that of the model."""


@config
class PlainGRPOConfig(GRPOConfig):
    """GRPO with the engine `plain`."""

    plain: PlainConfig = section(PlainConfig, model="${actor.path}", dtype="${actor.dtype}")
    """Settings of the engine `plain`; used only if it runs."""


KEYS = EngineKeys(
    name="plain",
    title="Plain",
    model_key="plain.model",
    length_key="plain.max_length",
    dtype_key="plain.dtype",
    dims="d",
)


def load(run: Any) -> Any:
    from plain_engine import load_model  # type: ignore[import-not-found]

    return load_model(run.config.plain, run.cwd)


@asynccontextmanager
async def open_engine(run: Any, me: Any, model: Any) -> AsyncIterator[Any]:
    from plain_engine import PlainEngine

    yield PlainEngine(run.config.plain, run.cwd, model)


def no_adapters(config: GRPOConfig) -> Iterator[Problem]:
    if config.actor.weight_update_mode == "adapter":
        yield Problem("actor.weight_update_mode", "Plain takes no adapters; set it to disk or collective")


SPEC = EngineSpec(
    KEYS,
    open=open_engine,
    prepare=load,
    cannot_keep="which continues an answer by a new request after an update",
    checks=(Check("adapters", Stage.CANNOT_START, no_adapters),),
)
register_engine(SPEC)
