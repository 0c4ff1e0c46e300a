"""An engine that somebody else has started, and that is used as if it were ours."""

import asyncio
import contextlib
import re
from collections.abc import Sequence

from areal_like.models import model_folder
from areal_like.process.errors import Failure
from areal_like.process.run import Run
from areal_like.process.waiting import Waiting
from areal_like.serving.attendant.base import Engine, Stopped
from areal_like.serving.attendant.kinds import connect
from areal_like.serving.attendant.readiness import until_ready
from areal_like.serving.attendant.rest import Rest
from areal_like.serving.attendant.start import Started

LOOK_S = 1.0
MOST_SILENCES = 3
"""In a row, until it counts as gone."""
CLEAR_S = 10.0
OURS = re.compile(r"v\d+(-[0-9a-f]+)?")
"""What adapters of runs are called."""


class AttachedEngine:
    """Used inside `async with`. It is left as it is at the end."""

    def __init__(self, run: Run, kind: str, address: str, secret: str, waiting: Waiting) -> None:
        folder = model_folder(run.config.actor.path, run.cwd)
        self._kind, self._address, self._waiting = kind, address, waiting
        self._engine = connect(kind, address, secret, run, folder)
        self._gone: asyncio.Task[Failure] | None = None

    async def __aenter__(self) -> "AttachedEngine":
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._gone is not None:
            self._gone.cancel()
        await self._engine.close()

    async def start(self) -> Started:
        await clear(self._engine)
        facts = await until_ready(self._engine, self._address, None, self._waiting)
        self._gone = asyncio.create_task(watch(self._engine, f"{self._kind} at {self._address}"))
        return Started(self._engine, facts, self._address, self._gone)


async def clear(engine: Engine) -> None:
    """Of what a run has left in it that did not come to its end in order: a pause, and adapters."""
    with contextlib.suppress(Stopped, ValueError, TimeoutError):  # what is wrong with it is told by who uses it
        async with asyncio.timeout(CLEAR_S):
            if engine.can_keep:
                await engine.resume()
            for name in await engine.loaded_adapters():
                if OURS.fullmatch(name):
                    await engine.unload_adapter(name)


async def leave(rest: Rest, holders: Sequence[str]) -> None:
    """It goes on where it was paused for the run, as far as it still answers."""
    with contextlib.suppress(Stopped, ValueError, TimeoutError):
        async with asyncio.timeout(CLEAR_S):
            for holder in holders:
                await rest.end(holder)


async def watch(engine: Engine, what: str) -> Failure:
    silences = 0
    while silences < MOST_SILENCES:
        await asyncio.sleep(LOOK_S)
        try:
            await engine.statistics()
        except Stopped as stop:
            silences += 1
            why = str(stop)
        else:
            silences = 0
    return Failure(f"{what} (rollout.server_addresses) does not answer any more: {why}")
