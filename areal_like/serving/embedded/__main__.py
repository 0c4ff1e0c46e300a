"""A server of a run: `python -m areal_like.serving.embedded --run-dir DIR --index I`."""

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
    # These take seconds to import: what is wrong with the run's own files should be told before. What they make stays
    # until the end, so that looking through it for garbage, a fifth of that time, finds nothing.
    gc.disable()
    from areal_like.serving.embedded.core.load_model import load_engine

    config = run.config.embedded
    try:
        folder = model_folder(config.model_path, run.cwd)
        engine = load_engine(config, folder, run.config.actor.trust_remote_code)
    except (ValueError, OSError) as unfit:
        raise Failure(str(unfit)) from unfit
    gc.freeze()
    gc.enable()
    log.info(
        "%s is loaded in %.1f s: %d sequences at once, %d tokens of context, a cache of up to %d tokens",
        *(
            config.model_path,
            time.perf_counter() - began,
            engine.max_running,
            engine.context_length,
            engine.cache.limit,
        ),
    )

    async def serve_until_told() -> None:
        from areal_like.serving.embedded.server import EmbeddedServer

        guard = CallGuard(token(), me.attempt)
        name = display_name(config.model_path)
        opens = run.opens_generation
        server = EmbeddedServer(engine, guard, run.run_id, name, config.seed, of_any=run.serves, is_open=opens)
        ends = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
        served = await serve(server.application(), run.host, _port(run, me))
        server.streams.driver.start()
        with open_name_store(run, me) as names:
            announce(names, me, served.address)
            log.info("ready at %s", served.address)
            broken: asyncio.Future[Any] = server.streams.broken
            await asyncio.wait([broken, asyncio.ensure_future(ends.wait())], return_when=asyncio.FIRST_COMPLETED)
        await served.close()
        if server.streams.broken.done():
            server.streams.broken.result()
        server.streams.driver.stop()

    run_async(serve_until_told())


def _port(run: Run, me: Identity) -> int:
    return run.config.rollout.port + me.index if run.config.rollout.port else 0


if __name__ == "__main__":
    sys.exit(run_process(main))
