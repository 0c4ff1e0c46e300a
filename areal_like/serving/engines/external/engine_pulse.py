"""The pulse of an engine that is another program: whether it answers, and computes tokens where it has requests."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from areal_like.process import pulse
from areal_like.serving.engines.base import EngineGone, InferenceEngine
from areal_like.serving.engines.call_limits import LimitedEngine

POLL_S = 2.0
LOAD = frozenset(("running", "waiting"))

log = logging.getLogger(__name__)


@asynccontextmanager
async def engine_pulse(
    engine: InferenceEngine, is_paused: Callable[[], bool], has_requests: Callable[[], bool]
) -> AsyncIterator[None]:
    """While it is open, the process is silent when the engine is. `has_requests`: whether the engine was given some, as
    one that hangs may not have counted them."""
    work = pulse.WorkPulse(pulse.GENERATING)
    asking = asyncio.create_task(_ask(LimitedEngine(engine), work, is_paused, has_requests))
    try:
        yield
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


async def _ask(
    engine: InferenceEngine, work: pulse.WorkPulse, is_paused: Callable[[], bool], has_requests: Callable[[], bool]
) -> None:
    last: dict[str, Any] = {}
    is_logged = False
    with work.running():
        while True:
            try:
                now = await engine.statistics()
            except (EngineGone, ValueError):
                now = {}
            except Exception:  # of an engine of one's own: silence too, and no end of the watch
                if not is_logged:
                    log.exception("the engine cannot be asked what it does")
                now, is_logged = {}, True
            if now and (is_paused() or makes_progress(last, now, has_requests())):
                work.advance()
            last = now or last
            await asyncio.sleep(POLL_S)


def makes_progress(before: dict[str, Any], now: dict[str, Any], has_requests: bool = False) -> bool:
    """An engine without requests makes none and need not. One that counts no tokens has to answer, no more."""
    is_idle = not has_requests and not any(now.get(name) for name in LOAD)
    return now != before or is_idle or now.keys() <= LOAD
