"""Process of an embedded server: `python -m areal_like.serving.engines.embedded --run-dir DIR --index I`."""

import asyncio
import gc
import logging
import signal
import sys
import time
from typing import Any

from areal_like.discovery import announce, open_name_store
from areal_like.models import display_name, model_folder
from areal_like.process.entrypoint import run_process
from areal_like.process.errors import Failure
from areal_like.process.http import run_async, serve
from areal_like.process.identity import CallGuard, Identity, token
from areal_like.process.run import Run

log = logging.getLogger(__name__)


def main(run: Run, me: Identity) -> None:
    began = time.perf_counter()
    # The imports take seconds, so errors in the run's files are reported before. Garbage collection would take a fifth
    # of that time and find nothing, since what they make lives until the end.
    gc.disable()
    from areal_like.serving.engines.embedded.core.load_model import load_engine

    config = run.config.embedded
    try:
        folder = model_folder(config.model_path, run.cwd)
        engine = load_engine(config, folder, run.config.actor.trust_remote_code)
    except (ValueError, OSError) as fault:
        raise Failure(str(fault)) from fault
    gc.freeze()
    gc.enable()
    log.info(
        "%s loaded in %.1f s: up to %d sequences at once, %d tokens of context, a cache of up to %d tokens",
        *(config.model_path, time.perf_counter() - began),
        *(engine.max_running, engine.context_length, engine.cache.limit),
    )

    async def serve_until_ended() -> None:
        from areal_like.serving.engines.embedded.server import EmbeddedServer

        guard = CallGuard(token(), me.attempt)
        name = display_name(config.model_path)
        opens = run.opens_generation
        server = EmbeddedServer(engine, guard, run.run_id, name, config.seed, of_any=run.serves, is_open=opens)
        ends = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
        served = await serve(server.application(), run.host, _port(run, me))
        server.async_engine.thread.start()
        with open_name_store(run, me) as names:
            announce(names, me, served.address)
            log.info("ready at %s", served.address)
            broken: asyncio.Future[Any] = server.async_engine.broken
            await asyncio.wait([broken, asyncio.ensure_future(ends.wait())], return_when=asyncio.FIRST_COMPLETED)
        await served.close()
        if server.async_engine.broken.done():
            server.async_engine.broken.result()
        server.async_engine.thread.stop()

    run_async(serve_until_ended())


def _port(run: Run, me: Identity) -> int:
    return run.config.rollout.port + me.index if run.config.rollout.port else 0


if __name__ == "__main__":
    sys.exit(run_process(main))
