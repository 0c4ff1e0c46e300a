"""Whether an engine can be worked with: it has generated a token, it is the one that was started, with its model."""

import asyncio

import aiohttp

from areal_like.process.errors import Failure
from areal_like.process.identity import RUN_HEADER
from areal_like.process.waiting import Waiting
from areal_like.serving.attendant.base import Engine, Facts, NotReady, Stopped, Unfit

PAUSE_S = 0.2
ONE_TRY_S = 60.0
"""A first generation may compile for as long; then it is asked for again."""
GREETING_S = 5.0


class PortTaken(Exception):
    """Somebody else answers where the engine should."""


async def until_ready(engine: Engine, address: str, wanted_seal: str | None, waiting: Waiting) -> Facts:
    """Asks until a token was generated; raises PortTaken, Failure, or TimedOut past the limit of `waiting`.
    `wanted_seal`: what the answers of an engine that we started show; None is somebody else's."""
    what = waiting.what
    async with aiohttp.ClientSession() as session:
        while True:
            left_s = max(0.1, waiting.limit_s - waiting.waited_s)
            try:
                if wanted_seal is not None:
                    await _check_seal(session, address, wanted_seal)
                return await asyncio.wait_for(engine.ready(), min(ONE_TRY_S, left_s))
            except TimeoutError:
                reason = "a generation did not come to its end"
            except (NotReady, Stopped) as not_yet:
                reason = str(not_yet)
            except Unfit as unfit:
                raise Failure(f"the server at {address}: {unfit}") from unfit
            waiting.what = f"{what} ({reason})" if reason else what
            waiting.check()
            await asyncio.sleep(PAUSE_S)


async def _check_seal(session: aiohttp.ClientSession, address: str, wanted: str) -> None:
    """By a route that every engine answers without a token."""
    limit = aiohttp.ClientTimeout(total=GREETING_S)
    try:
        async with session.get(f"http://{address}/health", timeout=limit) as response:
            shown = response.headers.get(RUN_HEADER)
    except (aiohttp.ClientConnectionError, TimeoutError) as fault:
        raise NotReady("nothing answers there yet") from fault
    except aiohttp.ClientError as fault:
        raise PortTaken(f"what answers at {address} speaks no HTTP: {fault}") from fault
    if shown is None:
        raise PortTaken(f"what answers at {address} is not the engine that was started here")
    if shown != wanted:
        raise PortTaken(f"the server of another process answers at {address}: {shown}")
