"""The engine `plain` of `tests/serving/contract`, which answers slowly or nonsense while the file that CHAOS_ENGINE
names says so, or does not end its next update of weights, its next request, or any more requests."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

PLAIN = Path(__file__).resolve().parents[1] / "serving" / "contract"
sys.path.insert(0, str(PLAIN))

from plain_schema import SPEC, PlainGRPOConfig  # type: ignore[import-not-found]  # noqa: E402

from areal_like import register_engine  # noqa: E402

SLOW_S = 3.0
FAULTS = ("tokens", "logprobs", "lengths", "count", "raises")
PlainGRPOConfig.__doc__ = "GRPO with an engine that can be made to answer slowly, or nonsense."


@asynccontextmanager
async def open_engine(run: Any, me: Any, model: Any) -> AsyncIterator[Any]:
    from plain_engine import PlainEngine  # type: ignore[import-not-found]

    class HurtingEngine(PlainEngine):
        answers, hangs = 0, False

        async def generate(self, request: Any) -> Any:
            how = Path(os.environ["CHAOS_ENGINE"]).read_text()
            if self.hangs or how == "hang in all requests":
                self.hangs = True
                await hang()
            outputs = await super().generate(request)
            if how == "answer slowly":
                await asyncio.sleep(SLOW_S)
            elif how == "hang in generate":
                await hang()
            elif how == "answer garbage":
                self.answers += 1
                return garbage(outputs, FAULTS[self.answers % len(FAULTS)])
            return outputs

        async def commit(self, update: Any, probe: Any = None) -> None:
            if Path(os.environ["CHAOS_ENGINE"]).read_text() == "hang in an update":
                await hang()
            await super().commit(update, probe)

    yield HurtingEngine(run.config.plain, run.cwd, model)


async def hang() -> None:
    """Once."""
    Path(os.environ["CHAOS_ENGINE"]).write_text("")
    await asyncio.to_thread(threading.Event().wait)


def garbage(outputs: list[Any], fault: str) -> list[Any]:
    first, *others = outputs
    if fault == "raises":
        raise RuntimeError("the engine has lost its mind")
    if fault == "count":
        return others
    if fault == "tokens":
        first = first._replace(token_ids=[10**9] * len(first.token_ids))
    elif fault == "logprobs":
        first = first._replace(logprobs=[float("nan")] * len(first.logprobs))
    else:
        first = first._replace(logprobs=[*first.logprobs, -1.0])
    return [first, *others]


register_engine(replace(SPEC, open=open_engine))
