"""The pulse of an engine: whether it answers, and computes tokens or ends requests where it has some."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from areal_like.config.fields import Auto
from areal_like.config.sections.watchdog import WatchdogConfig
from areal_like.process import pulse
from areal_like.process.errors import Failure
from areal_like.serving.engines.base import EngineGone, InferenceEngine

POLL_S = 2.0
MAX_GAP_S = 10.0
"""The most that one look adds to a silence: this process may have been stopped meanwhile."""
AUTO_S, AUTO_FACTOR = 300.0, 10.0
"""`auto` of the limit of an attached engine, as of those that the launcher kills."""
LOAD = frozenset(("running", "waiting"))

log = logging.getLogger(__name__)


class Load(NamedTuple):
    """What the server has given to the engine. `is_frozen`: it is paused with requests that it need not continue.
    `requests`: all that are in it; `asked`: those of the run among them; `answered`: how many of the run's it has
    answered until now."""

    is_frozen: bool
    requests: int
    asked: int
    answered: int


class EngineWatch:
    """Whether an engine goes on, from look to look. Pure."""

    def __init__(self) -> None:
        self.counts_tokens = True
        self._last: dict[str, Any] = {}
        self._answered = 0

    def goes_on(self, now: dict[str, Any] | None, load: Load) -> bool:
        """`now`: its statistics, if it has answered. An engine without requests makes no progress and need not. One
        that counts nothing besides its requests makes progress when it has answered one."""
        if now is None:
            return False
        has_answered, self._answered = load.answered != self._answered, load.answered
        before, self._last = self._last, now
        self.counts_tokens = not now.keys() <= LOAD
        if load.is_frozen or has_answered:
            return True
        if not self.counts_tokens:
            return not load.asked
        # One that hangs may not have counted the requests that it was given.
        return now != before or not (load.requests or any(now.get(name) for name in LOAD))


class Silence:
    """How long an engine has not gone on, and whether that is too long. Pure."""

    def __init__(self, limit_s: float | Auto | None) -> None:
        self._limit_s, self._longest = limit_s, 0.0
        self.seconds = 0.0

    def look(self, goes_on: bool, gap_s: float) -> bool:
        """With the seconds since the last look: whether it is past its limit."""
        if goes_on:
            self._longest, self.seconds = max(self._longest, self.seconds), 0.0
        else:
            self.seconds += min(gap_s, MAX_GAP_S)
        return self.seconds >= self.limit_s

    @property
    def limit_s(self) -> float:
        if isinstance(self._limit_s, str):
            return max(AUTO_S, AUTO_FACTOR * self._longest)
        return math.inf if self._limit_s is None else self._limit_s


@asynccontextmanager
async def engine_pulse(engine: InferenceEngine, load: Callable[[], Load], in_process: bool) -> AsyncIterator[None]:
    """While it is open, this process is silent when the engine is. Where that is inside of this process, or counts no
    tokens, all that this process computes shows that it computes."""
    work, watch = pulse.WorkPulse(pulse.GENERATING), EngineWatch()

    def look(now: dict[str, Any] | None) -> None:
        goes_on = watch.goes_on(now, load())
        if in_process or not watch.counts_tokens:
            work.is_of_process()
        if goes_on:
            work.advance()

    with work.running():
        async with _asked(engine, look):
            yield


@asynccontextmanager
async def attached_watch(
    engine: InferenceEngine,
    load: Callable[[], Load],
    what: str,
    limits: WatchdogConfig,
    end: Callable[[Failure], None],
) -> AsyncIterator[None]:
    """Ends this process instead, as `what` is not the run's to kill. One that counts no tokens may be slow: whether it
    computes is not seen from here."""
    silence, watch, looked_at = Silence(limits.generating_s), EngineWatch(), time.monotonic()
    is_named = False

    def look(now: dict[str, Any] | None) -> None:
        nonlocal looked_at, is_named
        gap_s = time.monotonic() - looked_at
        looked_at += gap_s
        goes_on = watch.goes_on(now, load()) or not watch.counts_tokens
        is_late = silence.look(goes_on, gap_s)
        text = f"{what} (rollout.server_addresses) has requests and has made no progress for {silence.seconds:.0f} s"
        if is_late:
            end(
                Failure(
                    f"watchdog.generating_s: {text}; a run does not end servers that it has not started: restart it"
                )
            )
        elif silence.seconds >= limits.notice_s and not is_named:
            when = "goes on" if math.isinf(silence.limit_s) else f"ends after {silence.limit_s:g} s"
            log.warning("%s; this process %s (watchdog.generating_s)", text, when)
        is_named = silence.seconds >= limits.notice_s

    async with _asked(engine, look):
        yield


@asynccontextmanager
async def _asked(engine: InferenceEngine, look: Callable[[dict[str, Any] | None], None]) -> AsyncIterator[None]:
    asking = asyncio.create_task(_ask(engine, look))
    try:
        yield
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


async def _ask(engine: InferenceEngine, look: Callable[[dict[str, Any] | None], None]) -> None:
    is_logged = False
    while True:
        now: dict[str, Any] | None = None
        try:
            now = await engine.statistics()
        except (EngineGone, ValueError):
            pass
        except Exception:  # of an engine of one's own: silence too, and no end of the watch
            if not is_logged:
                log.exception("the engine cannot be asked what it does")
            is_logged = True
        look(now)
        await asyncio.sleep(POLL_S)
