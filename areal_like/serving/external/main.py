"""The life of an attendant: an engine is there, is entered under the server's name, and is gone at the end."""

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

from aiohttp import web

from areal_like.discovery import announce, open_name_store
from areal_like.models import display_name
from areal_like.process.errors import Failure
from areal_like.process.http import run_async, serve
from areal_like.process.identity import CallGuard, Identity, token
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from areal_like.serving.external.attach import UNPROVEN_SERVER, AttachedEngine, prove_attached, release_pauses
from areal_like.serving.external.detection import EMBEDDED, detect, parse_address
from areal_like.serving.external.forwarding import ForwardingServer
from areal_like.serving.external.parts import build_parts
from areal_like.serving.external.public_proxy import PublicProxy
from areal_like.serving.external.registry import kind_of
from areal_like.serving.external.server import CONTROLLER, ExternalEngineServer
from areal_like.serving.external.start import LaunchedEngine, RunningEngine
from areal_like.serving.external.updates import UPDATE

log = logging.getLogger(__name__)


class ServerProcess:
    """`attach` is the address of an engine that runs already, else `command` starts one."""

    def __init__(self, run: Run, me: Identity, attach: str | None, kind: str | None, command: Sequence[str]) -> None:
        self._run, self._me, self._attach, self._kind, self._command = run, me, attach, kind, command
        self._guard = CallGuard(token(), me.attempt)

    def live(self) -> None:
        """Until told to end; raises the Failure that ends it otherwise."""
        run_async(self._until_told())

    async def _until_told(self) -> None:
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        life, ending = asyncio.create_task(self._live()), asyncio.create_task(told.wait())
        await asyncio.wait([life, ending], return_when=asyncio.FIRST_COMPLETED)
        if not life.done():
            life.cancel()
        ending.cancel()
        try:
            await life
        except asyncio.CancelledError:
            log.info("ended, as told")

    async def _live(self) -> None:
        async with AsyncExitStack() as stack:
            if self._attach is None:
                kind = self._kind or kind_of(self._run)
                own = await stack.enter_async_context(LaunchedEngine(self._run, kind, self._command))
                failure = await self._translate(stack, kind, await own.start(), token())
            else:
                failure = await self._attached(stack, parse_address(self._attach))
        raise failure

    async def _attached(self, stack: AsyncExitStack, address: str) -> Failure:
        rollout = self._run.config.rollout
        secret = os.environ.get(rollout.api_key_var, "")
        what = f"the server at {address} (rollout.server_addresses)"
        waiting = NamedWait(what, rollout.setup_timeout, "rollout.setup_timeout")
        kind = self._kind or rollout.server_type
        proofs = await prove_attached(address, secret, rollout.api_key_var, waiting)
        if kind == "auto":
            kind = await detect(address, secret, proofs, waiting)
            log.info("%s is %s", what, kind)
        if kind != EMBEDDED:
            engine = AttachedEngine(self._run, kind, address, secret, waiting, proofs)
            attached = await stack.enter_async_context(engine)
            return await self._translate(stack, kind, await attached.start(), secret)
        if proofs is None:
            raise Failure(f"rollout.server_addresses: {UNPROVEN_SERVER.format(address=address)}")
        passing = ForwardingServer(address, secret, proofs, self._guard, self._run.run_id, rollout.api_key_var)
        stack.push_async_callback(passing.close)
        await passing.ready(self._me, waiting)
        await self._enter(stack, passing.application())
        return await passing.gone()

    async def _translate(self, stack: AsyncExitStack, kind: str, started: RunningEngine, secret: str) -> Failure:
        """Speaks for an engine of others, until it or this process is at an end."""
        engine, info = started.engine, started.info
        stack.push_async_callback(engine.close)
        parts = build_parts(self._run, kind, engine, info)
        if self._attach is not None:
            stack.push_async_callback(release_pauses, parts.pauser, (CONTROLLER, UPDATE))
        proxy = PublicProxy(started.address, secret, parts.queue, parts.pauser, parts.served, info, started.proofs)
        stack.push_async_callback(proxy.close)
        name = display_name(self._run.config.actor.path)
        guard, opens = self._guard, self._run.opens_generation
        server = ExternalEngineServer(engine, info, started.gone, parts, proxy, guard, self._run.run_id, name, opens)
        log.info(
            "%s %s generates: %s, %d tokens of context", info.engine, info.version, info.model, info.context_length
        )
        await self._enter(stack, server.application())
        done, _ = await asyncio.wait([started.gone, server.fatal], return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    async def _enter(self, stack: AsyncExitStack, app: web.Application) -> None:
        rollout = self._run.config.rollout
        served = await serve(app, self._run.host, rollout.port + self._me.index if rollout.port else 0)
        stack.push_async_callback(served.close)
        names = stack.enter_context(open_name_store(self._run, self._me))
        announce(names, self._me, served.address)
        log.info("ready at %s", served.address)
