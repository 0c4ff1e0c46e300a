"""An engine that somebody else has started, and that is used as if it were ours."""

import asyncio
import contextlib
import re
from collections.abc import Sequence

from areal_like.models import model_folder
from areal_like.process.errors import Failure
from areal_like.process.proof_connector import request_proof
from areal_like.process.proof_handshake import ProofFailed, ProofVerifier
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from areal_like.serving.external.base import EngineGone, InferenceEngine
from areal_like.serving.external.pauser import Pauser
from areal_like.serving.external.readiness import until_ready
from areal_like.serving.external.registry import connect
from areal_like.serving.external.start import RunningEngine

POLL_S = 1.0
UNPROVEN_SERVER = (
    "{address} answers like a server of ours and does not prove that it is one, so the key was not sent; start it with "
    "this version (python -m launcher serve), or leave it out"
)
MAX_MISSED_ANSWERS = 3
"""In a row, until it counts as gone."""
CLEANUP_S = 10.0
RUN_ADAPTER = re.compile(r"v\d+(-[0-9a-f]+)?")
"""What adapters of runs are called."""


class AttachedEngine:
    """Used inside `async with`. It is left as it is at the end."""

    def __init__(
        self, run: Run, kind: str, address: str, secret: str, waiting: NamedWait, proofs: ProofVerifier | None
    ) -> None:
        folder = model_folder(run.config.actor.path, run.cwd)
        self._kind, self._address, self._waiting, self._proofs = kind, address, waiting, proofs
        self._engine = connect(kind, address, secret, run, folder, proofs)
        self._gone: asyncio.Task[Failure] | None = None

    async def __aenter__(self) -> "AttachedEngine":
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._gone is not None:
            self._gone.cancel()
        await self._engine.close()

    async def start(self) -> RunningEngine:
        await remove_leftovers(self._engine)
        info = await until_ready(self._engine, self._address, self._proofs, self._waiting)
        self._gone = asyncio.create_task(watch_engine(self._engine, f"{self._kind} at {self._address}"))
        return RunningEngine(self._engine, info, self._address, self._gone, self._proofs)


async def prove_attached(address: str, secret: str, key_variable: str, waiting: NamedWait) -> ProofVerifier | None:
    """Before the key is sent there: a server that says to be ours has to prove that it knows the key. None for what
    does not say so, which cannot be asked for a proof; a user who names it trusts it."""
    while True:
        try:
            greeting = await request_proof(address)
            break
        except ProofFailed as unproven:
            raise Failure(f"rollout.server_addresses: {unproven}") from unproven
        except (OSError, TimeoutError):
            waiting.check()
        await asyncio.sleep(POLL_S)
    if not greeting.is_ours:
        return None
    proofs = ProofVerifier(secret, greeting.start_id)
    try:
        proofs.check(greeting)
    except ProofFailed as unproven:
        known = "another one" if secret else "nothing"
        raise Failure(
            f"rollout.api_key_var: the server at {address} does not prove that it knows the key that this run would "
            f"send it; either it has a key and {key_variable} holds {known}, or it is not the server that you mean, or "
            "it does not listen on the very address and port that the connection was made to (a tunnel must keep "
            f"both). Put the key of the serving run in {key_variable}; nothing was sent"
        ) from unproven
    return proofs


async def remove_leftovers(engine: InferenceEngine) -> None:
    """Of what a run has left in it that did not come to its end in order: a pause, and adapters."""
    with contextlib.suppress(EngineGone, ValueError, TimeoutError):  # what is wrong with it is told by who uses it
        async with asyncio.timeout(CLEANUP_S):
            if engine.can_keep:
                await engine.resume()
            for name in await engine.loaded_adapters():
                if RUN_ADAPTER.fullmatch(name):
                    await engine.unload_adapter(name)


async def release_pauses(pauser: Pauser, holders: Sequence[str]) -> None:
    """It goes on where it was paused for the run, as far as it still answers."""
    with contextlib.suppress(EngineGone, ValueError, TimeoutError):
        async with asyncio.timeout(CLEANUP_S):
            for holder in holders:
                await pauser.end(holder)


async def watch_engine(engine: InferenceEngine, what: str) -> Failure:
    silences = 0
    while silences < MAX_MISSED_ANSWERS:
        await asyncio.sleep(POLL_S)
        try:
            await engine.statistics()
        except EngineGone as stop:
            silences += 1
            why = str(stop)
        else:
            silences = 0
    return Failure(f"{what} (rollout.server_addresses) does not answer any more: {why}")
