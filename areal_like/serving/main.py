"""The life of a server: opens its engine, serves, registers its name, and ends."""

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from aiohttp import web

from areal_like.config.dotted_path import value_of
from areal_like.discovery import announce, open_name_store
from areal_like.models import display_name, model_folder
from areal_like.process.errors import Failure
from areal_like.process.http import run_async, serve
from areal_like.process.identity import CallGuard, Identity, token
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from areal_like.serving.engines.base import InferenceEngine
from areal_like.serving.engines.engine_pulse import attached_watch, engine_pulse
from areal_like.serving.engines.external.attach import (
    OURS,
    UNPROVEN_SERVER,
    attached,
    detect,
    parse_address,
    prove_attached,
    release_pauses,
)
from areal_like.serving.engines.external.start import ConnectTo, EngineProgram, launched
from areal_like.serving.engines.registry import engine_of, engine_spec
from areal_like.serving.engines.spec import EngineSpec
from areal_like.serving.forwarding import ForwardingServer
from areal_like.serving.server import CONTROLLER, InferenceServer, ServerSettings
from areal_like.serving.updates import UPDATE

log = logging.getLogger(__name__)


class ServerProcess:
    """`attach` is the address of a running engine. Without it the engine is opened here, by `command` if it is another
    program."""

    def __init__(self, run: Run, me: Identity, attach: str | None, kind: str | None, command: Sequence[str]) -> None:
        self._run, self._me, self._attach, self._kind, self._command = run, me, attach, kind, command
        self._guard = CallGuard(token(), me.attempt)
        self._spec: EngineSpec | None = None
        self._prepared: Any = None

    def run(self) -> None:
        """Until SIGTERM; raises the Failure that ends it otherwise."""
        if self._attach is None:
            self._spec = engine_spec(self._kind) if self._kind else engine_of(self._run)
            self._prepared = self._spec.prepare(self._run)
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
                assert self._spec is not None, "it is known before the event loop starts"
                engine = await stack.enter_async_context(self._opened(self._spec))
                failure = await self._serve_engine(stack, engine, self._spec)
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
            spec = engine_spec(kind)
            attaching = attached(
                *(spec.keys.title, address, secret, proofs, waiting, rollout.call_timeout, self._connect(spec))
            )
            return await self._serve_engine(stack, await stack.enter_async_context(attaching), spec)
        if proofs is None:
            raise Failure(f"rollout.server_addresses: {UNPROVEN_SERVER.format(address=address)}")
        server = ForwardingServer(
            address, secret, proofs, self._guard, self._run.run_id, rollout.api_key_var, rollout.request_timeout
        )
        stack.push_async_callback(server.close)
        await server.ready(self._me, waiting)
        await self._register(stack, server.application())
        return await server.wait_until_gone()

    async def _serve_engine(self, stack: AsyncExitStack, engine: InferenceEngine, spec: EngineSpec) -> Failure:
        """Serves until the engine or this process ends."""
        settings = server_settings(self._run, spec, self._attach is not None)
        server = InferenceServer(engine, settings, self._guard)
        stack.push_async_callback(server.close)
        if self._attach is not None:
            stack.push_async_callback(release_pauses, server.pauser, (CONTROLLER, UPDATE))
            what = f"{spec.keys.title} at {parse_address(self._attach)}"
            limits = self._run.config.watchdog
            await stack.enter_async_context(attached_watch(server.engine, server.load, what, limits, server.end))
        elif not engine.has_pulse:
            in_process = spec.open is not None
            await stack.enter_async_context(engine_pulse(server.engine, server.load, in_process))
        info = engine.info
        log.info(
            "%s %s generates: %s, %d tokens of context", info.engine, info.version, info.model, info.context_length
        )
        await self._register(stack, server.application())
        return await server.until_ended()

    def _opened(self, spec: EngineSpec) -> AbstractAsyncContextManager[InferenceEngine]:
        if spec.open is not None:
            return spec.open(self._run, self._me, self._prepared)
        if not self._command:
            raise Failure(f"rollout.backend: {spec.name} is another program, and its command is missing after --")
        program = EngineProgram(spec.keys.title, self._command, spec.memory_hints, spec.takes_token)
        return launched(self._run, program, self._connect(spec))

    def _connect(self, spec: EngineSpec) -> ConnectTo:
        if spec.connect is None:
            raise Failure(f"rollout.backend: {spec.name} runs inside its server and has no address")
        connect, folder = spec.connect, model_folder(self._run.config.actor.path, self._run.cwd)
        return lambda address, secret, proofs: connect(address, secret, self._run, folder, proofs)

    async def _register(self, stack: AsyncExitStack, app: web.Application) -> None:
        rollout = self._run.config.rollout
        server = await serve(app, self._run.host, rollout.port + self._me.index if rollout.port else 0)
        stack.push_async_callback(server.close)
        names = stack.enter_context(open_name_store(self._run, self._me))
        announce(names, self._me, server.address)
        log.info("ready at %s", server.address)


def server_settings(run: Run, spec: EngineSpec, is_attached: bool = False) -> ServerSettings:
    path = value_of(run.config, spec.keys.model_key) or run.config.actor.path
    return ServerSettings(
        run_id=run.run_id,
        accepted_run=None if run.serves else run.run_id,
        model=display_name(path),
        model_folder=model_folder(path, run.cwd),
        request_timeout_s=run.config.rollout.request_timeout,
        call_timeout_s=run.config.rollout.call_timeout,
        is_open=run.opens_generation,
        is_attached=is_attached,
    )
