"""Starts an engine on a leased port and waits until it generates."""

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from areal_like.models import model_folder
from areal_like.process.errors import Failure, TimedOut
from areal_like.process.identity import PORT, RUN_ID, identity, start_id, token
from areal_like.process.port_lease import PortLease, lease_port
from areal_like.process.proof_connector import request_proof
from areal_like.process.proof_handshake import ProofFailed, ProofVerifier
from areal_like.process.run import LOOPBACK, Run
from areal_like.process.shared_segments import record_path
from areal_like.process.wait import NamedWait
from areal_like.serving.engines.base import EngineGone, EngineInfo, IncompatibleEngine, InferenceEngine, NotReady
from areal_like.serving.engines.external.engine_process import EngineProcess, import_folder
from areal_like.serving.engines.registry import connect

TRIES = 4
POLL_S = 0.2
ATTEMPT_TIMEOUT_S = 60.0
"""The first generation may compile that long; then it is requested again."""

log = logging.getLogger(__name__)


class PortTaken(Exception):
    """Another process answers at the engine's port."""


class RunningEngine(NamedTuple):
    """An engine that generates. `engine_exit` returns a Failure when the engine has ended. `proofs` is None for an
    engine that cannot prove its identity."""

    engine: InferenceEngine
    info: EngineInfo
    address: str
    engine_exit: "asyncio.Task[Failure]"
    proofs: ProofVerifier | None


class LaunchedEngine:
    """An engine started by this process. Use it with `async with`, which ends all of the engine's processes."""

    def __init__(self, run: Run, kind: str, command: Sequence[str]) -> None:
        self._run, self._kind, self._command = run, kind, list(command)
        self._child: EngineProcess | None = None
        self._lease: PortLease | None = None
        self._engine_exit: asyncio.Task[Failure] | None = None

    async def __aenter__(self) -> "LaunchedEngine":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._end()

    async def start(self) -> RunningEngine:
        """Tries another port if the first is taken."""
        limit_s = self._run.config.rollout.setup_timeout
        waiting = NamedWait(f"{self._kind} to generate its first token", limit_s, "rollout.setup_timeout")
        for number in range(1, TRIES + 1):
            port = self._port()
            try:
                return await self._try(port, waiting)
            except PortTaken as taken:
                log.warning("port %d is taken (%s)", port, taken)
                if PORT not in self._command:
                    raise Failure(f"{self._kind}: port {port} of its command is taken: {taken}") from None
            await self._end()
            if number < TRIES:
                log.warning("%s is started again on another port (start %d of %d)", self._kind, number + 1, TRIES)
        raise Failure(
            f"{self._kind}: each of {TRIES} free ports was taken by another process before the engine used it"
        )

    async def _try(self, port: int, waiting: NamedWait) -> RunningEngine:
        address = f"{LOOPBACK}:{port}"
        variables = {RUN_ID: self._run.run_id, "PYTHONPATH": str(import_folder(self._run.directory))}
        command = [str(port) if word == PORT else word for word in self._command]
        log.info("starting %s on port %d", self._kind, port)
        child = self._child = EngineProcess(
            command, variables, self._run.cwd, record_path(self._run.memory, identity().file_name)
        )
        engine_exit = self._engine_exit = asyncio.create_task(self._watch(child))
        folder = model_folder(self._run.config.actor.path, self._run.cwd)
        proofs = ProofVerifier(token(), start_id({**os.environ, **variables}))
        engine = connect(self._kind, address, token(), self._run, folder, proofs)
        ready = asyncio.create_task(until_ready(engine, address, proofs, waiting))
        try:
            await asyncio.wait([ready, engine_exit], return_when=asyncio.FIRST_COMPLETED)
            if engine_exit.done() and (not ready.done() or ready.exception() is not None):
                if child.port_was_taken:
                    raise PortTaken("the engine reports that its address is in use")
                raise engine_exit.result()
            return RunningEngine(engine, await ready, address, engine_exit, proofs)
        except TimedOut as late:
            last = child.lines[-1].strip() if child.lines else "nothing"
            raise TimedOut(f"{late}. Its last output: {last}") from None
        except BaseException:
            await engine.close()
            raise
        finally:
            ready.cancel()

    async def _watch(self, child: EngineProcess) -> Failure:
        code = await child.ended()
        return Failure(f"the {self._kind} engine {child.failure_text(code)}")

    def _port(self) -> int:
        """A leased one, or the one in the command."""
        if PORT in self._command:
            self._lease = lease_port()
            return self._lease.port
        for flag, value in zip(self._command, self._command[1:], strict=False):
            if flag == "--port" and value.isdigit():
                return int(value)
        raise Failure(f"the engine's command has no --port with a number or {PORT}: {' '.join(self._command)}")

    async def _end(self) -> None:
        if self._engine_exit is not None:
            self._engine_exit.cancel()
        if self._child is not None:
            await self._child.end()
        if self._lease is not None:
            self._lease.close()
        self._child = self._lease = self._engine_exit = None


async def until_ready(
    engine: InferenceEngine, address: str, proofs: ProofVerifier | None, waiting: NamedWait
) -> EngineInfo:
    """Waits until the engine has generated a token; raises PortTaken, Failure, or TimedOut after the limit of
    `waiting`. With `proofs` nothing is sent before the engine has proved its identity."""
    what = waiting.what
    while True:
        left_s = max(0.1, waiting.limit_s - waiting.waited_s)
        try:
            if proofs is not None:
                await _check_identity(proofs, address)
            return await asyncio.wait_for(engine.ready(), min(ATTEMPT_TIMEOUT_S, left_s))
        except TimeoutError:
            reason = "its first generation did not finish"
        except (NotReady, EngineGone) as not_yet:
            reason = str(not_yet)
        except IncompatibleEngine as fault:
            raise Failure(f"the server at {address}: {fault}") from fault
        waiting.what = f"{what} ({reason})" if reason else what
        waiting.check()
        await asyncio.sleep(POLL_S)


async def _check_identity(proofs: ProofVerifier, address: str) -> None:
    try:
        proofs.check(await request_proof(address))
    except (OSError, TimeoutError) as fault:
        raise NotReady("nothing answers there yet") from fault
    except ProofFailed as fault:
        raise PortTaken(str(fault)) from fault
