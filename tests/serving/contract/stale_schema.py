"""The engine `stale`: shows the new weights and computes with a copy of the first ones, as a captured graph may."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from plain_schema import KEYS, SPEC, PlainConfig  # type: ignore[import-not-found]

from areal_like import register_engine
from areal_like.config.experiment import GRPOConfig
from areal_like.config.fields import config, section


@config
class StaleGRPOConfig(GRPOConfig):
    """GRPO with the engine `stale`."""

    plain: PlainConfig = section(PlainConfig, model="${actor.path}", dtype="${actor.dtype}")
    """Settings of its base."""


@asynccontextmanager
async def open_engine(run: Any, me: Any, model: Any) -> AsyncIterator[Any]:
    from stale_engine import StaleEngine  # type: ignore[import-not-found]

    yield StaleEngine(run.config.plain, run.cwd, model)


register_engine(replace(SPEC, keys=replace(KEYS, name="stale", title="Stale"), open=open_engine))
