"""Starts an engine on a leased port and waits until it generates."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from areal_like.process.errors import Failure, ProgramKilled, TimedOut
from areal_like.process.identity import PORT, RUN_ID, TOKEN, identity, start_id, token
from areal_like.process.port_lease import PortLease, lease_port
from areal_like.process.proof_connector import request_proof
from areal_like.process.proof_handshake import ProofFailed, ProofVerifier
from areal_like.process.run import LOOPBACK, Run
from areal_like.process.shared_segments import record_path
from areal_like.process.wait import NamedWait
from areal_like.serving.engines.base import EngineGone
from areal_like.serving.engines.external.engine_log import MemoryHint, with_remedy
from areal_like.serving.engines.external.engine_process import EngineProcess, import_folder
from areal_like.serving.engines.external.external_engine import ExternalEngine, IncompatibleEngine, NotReady

TRIES = 4
POLL_S = 0.2
ATTEMPT_TIMEOUT_S = 60.0
"""The first generation may compile that long; then it is requested again."""

ConnectTo = Callable[[str, str, ProofVerifier | None], ExternalEngine]
"""Makes the client of the engine at an address, with a secret. With proofs the engine must prove its identity."""

log = logging.getLogger(__name__)


class EngineProgram(NamedTuple):
    """`takes_token`: it reads the run's token from a descriptor (`take_token`); else it is in its environment, which
    others can read."""

    title: str
    command: Sequence[str]
    hints: Sequence[MemoryHint] = ()
    takes_token: bool = False


class PortTaken(Exception):
    """Another process answers at the engine's port."""


@asynccontextmanager
async def launched(run: Run, program: EngineProgram, connect: ConnectTo) -> AsyncIterator[ExternalEngine]:
    """An engine that this process starts, once it generates; all of its processes are ended at the end."""
    launch = EngineLaunch(run, program, connect)
    try:
        engine = await launch.start()
        try:
            yield engine
        finally:
            await engine.close()
    finally:
        await launch.end()


class EngineLaunch:
    def __init__(self, run: Run, program: EngineProgram, connect: ConnectTo) -> None:
        self._run, self._program, self._connect = run, program, connect
        self._title, self._command = program.title, list(program.command)
        self._child: EngineProcess | None = None
        self._lease: PortLease | None = None
        self._ended: asyncio.Task[Failure] | None = None

    async def start(self) -> ExternalEngine:
        """Tries another port if the first is taken."""
        limit_s = self._run.config.rollout.setup_timeout
        waiting = NamedWait(f"{self._title} to generate its first token", limit_s, "rollout.setup_timeout")
        for number in range(1, TRIES + 1):
            port = self._port()
            try:
                return await self._try(port, waiting)
            except PortTaken as taken:
                log.warning("port %d is taken (%s)", port, taken)
                if PORT not in self._command:
                    raise Failure(f"{self._title}: port {port} of its command is taken: {taken}") from None
            await self.end()
            if number < TRIES:
                log.warning("%s is started again on another port (start %d of %d)", self._title, number + 1, TRIES)
        raise Failure(
            f"{self._title}: each of {TRIES} free ports was taken by another process before the engine used it"
        )

    async def _try(self, port: int, waiting: NamedWait) -> ExternalEngine:
        address = f"{LOOPBACK}:{port}"
        variables = {RUN_ID: self._run.run_id, "PYTHONPATH": str(import_folder(self._run.directory))}
        command = [str(port) if word == PORT else word for word in self._command]
        log.info("starting %s on port %d", self._title, port)
        record = record_path(self._run.memory, identity().file_name)
        if self._program.takes_token:
            child = EngineProcess(command, variables, self._run.cwd, record, token())
        else:
            child = EngineProcess(command, variables | {TOKEN: token()}, self._run.cwd, record)
        self._child = child
        ended = self._ended = asyncio.create_task(self._watch(child))
        proofs = ProofVerifier(token(), start_id({**os.environ, **variables}))
        engine = self._connect(address, token(), proofs)
        engine.ended = ended
        ready = asyncio.create_task(until_ready(engine, address, proofs, waiting))
        try:
            await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and (not ready.done() or ready.exception() is not None):
                if child.port_was_taken:
                    raise PortTaken("the engine reports that its address is in use")
                raise ended.result()
            await ready
            return engine
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
        text = with_remedy(f"the {self._title} engine {child.failure_text(code)}", self._program.hints)
        return ProgramKilled(text) if child.was_killed(code) else Failure(text)

    def _port(self) -> int:
        """A leased one, or the one in the command."""
        if PORT in self._command:
            self._lease = lease_port()
            return self._lease.port
        for flag, value in zip(self._command, self._command[1:], strict=False):
            if flag == "--port" and value.isdigit():
                return int(value)
        raise Failure(f"the engine's command has no --port with a number or {PORT}: {' '.join(self._command)}")

    async def end(self) -> None:
        if self._ended is not None:
            self._ended.cancel()
        if self._child is not None:
            await self._child.end()
        if self._lease is not None:
            self._lease.close()
        self._child = self._lease = self._ended = None


async def until_ready(engine: ExternalEngine, address: str, proofs: ProofVerifier | None, waiting: NamedWait) -> None:
    """Waits until the engine has generated a token; raises PortTaken, Failure, or TimedOut after the limit of
    `waiting`. With `proofs` nothing is sent before the engine has proved its identity."""
    what = waiting.what
    while True:
        left_s = max(0.1, waiting.limit_s - waiting.waited_s)
        try:
            if proofs is not None:
                await _check_identity(proofs, address)
            await asyncio.wait_for(engine.ready(), min(ATTEMPT_TIMEOUT_S, left_s))
            return
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
