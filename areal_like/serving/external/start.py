"""Starts an engine on a port of its own, and is the first to know when it does not come up."""

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from areal_like.models import model_folder
from areal_like.process.errors import Failure, TimedOut
from areal_like.process.identity import PORT, RUN_ID, identity, start_id, token
from areal_like.process.port_lease import PortLease, lease_port
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.process.run import LOOPBACK, Run
from areal_like.process.shared_segments import record_path
from areal_like.process.wait import NamedWait
from areal_like.serving.external.base import EngineInfo, InferenceEngine
from areal_like.serving.external.engine_process import EngineProcess, import_folder
from areal_like.serving.external.readiness import PortTaken, until_ready
from areal_like.serving.external.registry import connect

TRIES = 4

log = logging.getLogger(__name__)


class RunningEngine(NamedTuple):
    """An engine that generates. `gone` ends, with the Failure to end by, when the engine has. `proofs` is None where
    the engine cannot be asked for any."""

    engine: InferenceEngine
    info: EngineInfo
    address: str
    gone: "asyncio.Task[Failure]"
    proofs: ProofVerifier | None


class LaunchedEngine:
    """The engine that this process has started. Used inside `async with`, which leaves nothing running."""

    def __init__(self, run: Run, kind: str, command: Sequence[str]) -> None:
        self._run, self._kind, self._command = run, kind, list(command)
        self._child: EngineProcess | None = None
        self._lease: PortLease | None = None
        self._gone: asyncio.Task[Failure] | None = None

    async def __aenter__(self) -> "LaunchedEngine":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._end()

    async def start(self) -> RunningEngine:
        """On another port when somebody took the first."""
        limit_s = self._run.config.rollout.setup_timeout
        waiting = NamedWait(f"{self._kind} to generate its first token", limit_s, "rollout.setup_timeout")
        for number in range(1, TRIES + 1):
            port = self._port()
            try:
                return await self._try(port, waiting)
            except PortTaken as taken:
                log.warning("port %d is taken (%s)", port, taken)
                if PORT not in self._command:
                    raise Failure(f"{self._kind}: port {port}, which it was told to take, is taken: {taken}") from None
            await self._end()
            if number < TRIES:
                log.warning("%s is started again on another port (start %d of %d)", self._kind, number + 1, TRIES)
        raise Failure(f"{self._kind}: somebody else took each of {TRIES} ports that were free a moment before")

    async def _try(self, port: int, waiting: NamedWait) -> RunningEngine:
        address = f"{LOOPBACK}:{port}"
        said = {RUN_ID: self._run.run_id, "PYTHONPATH": str(import_folder(self._run.directory))}
        command = [str(port) if word == PORT else word for word in self._command]
        log.info("starting %s on port %d", self._kind, port)
        child = self._child = EngineProcess(
            command, said, self._run.cwd, record_path(self._run.memory, identity().file_name)
        )
        gone = self._gone = asyncio.create_task(self._watch(child))
        folder = model_folder(self._run.config.actor.path, self._run.cwd)
        proofs = ProofVerifier(token(), start_id({**os.environ, **said}))
        engine = connect(self._kind, address, token(), self._run, folder, proofs)
        ready = asyncio.create_task(until_ready(engine, address, proofs, waiting))
        try:
            await asyncio.wait([ready, gone], return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and (not ready.done() or ready.exception() is not None):
                if child.port_was_taken:
                    raise PortTaken("the engine says that its address is in use")
                raise gone.result()
            return RunningEngine(engine, await ready, address, gone, proofs)
        except TimedOut as late:
            last = child.lines[-1].strip() if child.lines else "nothing"
            raise TimedOut(f"{late}. The last that it said: {last}") from None
        except BaseException:
            await engine.close()
            raise
        finally:
            ready.cancel()

    async def _watch(self, child: EngineProcess) -> Failure:
        code = await child.ended()
        return Failure(f"the {self._kind} engine {child.failure_text(code)}")

    def _port(self) -> int:
        """A leased one, or the one that the command names."""
        if PORT in self._command:
            self._lease = lease_port()
            return self._lease.port
        for flag, value in zip(self._command, self._command[1:], strict=False):
            if flag == "--port" and value.isdigit():
                return int(value)
        raise Failure(f"the engine's command has no --port with a number or {PORT}: {' '.join(self._command)}")

    async def _end(self) -> None:
        if self._gone is not None:
            self._gone.cancel()
        if self._child is not None:
            await self._child.end()
        if self._lease is not None:
            self._lease.close()
        self._child = self._lease = self._gone = None
