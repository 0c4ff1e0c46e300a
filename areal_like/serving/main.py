"""A server process in front of an external engine: starts or attaches the engine, serves, and ends it."""

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
from areal_like.serving.engines.external.attach import (
    OURS,
    UNPROVEN_SERVER,
    AttachedEngine,
    detect,
    parse_address,
    prove_attached,
    release_pauses,
)
from areal_like.serving.engines.external.start import LaunchedEngine, RunningEngine
from areal_like.serving.engines.registry import engine_of
from areal_like.serving.forwarding import ForwardingServer
from areal_like.serving.public_proxy import PublicProxy
from areal_like.serving.server import CONTROLLER, ExternalEngineServer, build_parts
from areal_like.serving.updates import UPDATE

log = logging.getLogger(__name__)


class ServerProcess:
    """`attach` is the address of a running engine; without it `command` starts one."""

    def __init__(self, run: Run, me: Identity, attach: str | None, kind: str | None, command: Sequence[str]) -> None:
        self._run, self._me, self._attach, self._kind, self._command = run, me, attach, kind, command
        self._guard = CallGuard(token(), me.attempt)

    def run(self) -> None:
        """Until SIGTERM; raises the Failure that ends it otherwise."""
        run_async(self._until_sigterm())

    async def _until_sigterm(self) -> None:
        terminated = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        serving, ending = asyncio.create_task(self._serve()), asyncio.create_task(terminated.wait())
        await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            serving.cancel()
        ending.cancel()
        try:
            await serving
        except asyncio.CancelledError:
            log.info("ended by SIGTERM")

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            if self._attach is None:
                kind = self._kind or engine_of(self._run).name
                launched = await stack.enter_async_context(LaunchedEngine(self._run, kind, self._command))
                failure = await self._serve_engine(stack, kind, await launched.start(), token())
            else:
                failure = await self._serve_attached(stack, parse_address(self._attach))
        raise failure

    async def _serve_attached(self, stack: AsyncExitStack, address: str) -> Failure:
        rollout = self._run.config.rollout
        secret = os.environ.get(rollout.api_key_var, "")
        what = f"the server at {address} (rollout.server_addresses)"
        waiting = NamedWait(what, rollout.setup_timeout, "rollout.setup_timeout")
        kind = self._kind or rollout.server_type
        proofs = await prove_attached(address, secret, rollout.api_key_var, waiting)
        if kind == "auto":
            kind = await detect(address, secret, proofs, waiting)
            log.info("%s is %s", what, kind)
        if kind != OURS:
            engine = AttachedEngine(self._run, kind, address, secret, waiting, proofs)
            attached = await stack.enter_async_context(engine)
            return await self._serve_engine(stack, kind, await attached.start(), secret)
        if proofs is None:
            raise Failure(f"rollout.server_addresses: {UNPROVEN_SERVER.format(address=address)}")
        server = ForwardingServer(address, secret, proofs, self._guard, self._run.run_id, rollout.api_key_var)
        stack.push_async_callback(server.close)
        await server.ready(self._me, waiting)
        await self._register(stack, server.application())
        return await server.wait_until_gone()

    async def _serve_engine(self, stack: AsyncExitStack, kind: str, running: RunningEngine, secret: str) -> Failure:
        """Serves until the engine or this process ends."""
        engine, info = running.engine, running.info
        stack.push_async_callback(engine.close)
        parts = build_parts(self._run, kind, engine, info)
        if self._attach is not None:
            stack.push_async_callback(release_pauses, parts.pauser, (CONTROLLER, UPDATE))
        proxy = PublicProxy(running.address, secret, parts.queue, parts.pauser, parts.served, info, running.proofs)
        stack.push_async_callback(proxy.close)
        name = display_name(self._run.config.actor.path)
        guard, opens = self._guard, self._run.opens_generation
        server = ExternalEngineServer(
            engine, info, running.engine_exit, parts, proxy, guard, self._run.run_id, name, opens
        )
        log.info(
            "%s %s generates: %s, %d tokens of context", info.engine, info.version, info.model, info.context_length
        )
        await self._register(stack, server.application())
        done, _ = await asyncio.wait([running.engine_exit, server.fatal], return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    async def _register(self, stack: AsyncExitStack, app: web.Application) -> None:
        rollout = self._run.config.rollout
        server = await serve(app, self._run.host, rollout.port + self._me.index if rollout.port else 0)
        stack.push_async_callback(server.close)
        names = stack.enter_context(open_name_store(self._run, self._me))
        announce(names, self._me, server.address)
        log.info("ready at %s", server.address)
