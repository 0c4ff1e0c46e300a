"""Attaches to a running engine: detects its kind, checks its identity, watches it, and leaves it running at the end."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from areal_like.config.engines import default_engine, engines, gpu_engines
from areal_like.process.errors import Failure
from areal_like.process.proof_connector import ProofConnector, request_proof
from areal_like.process.proof_handshake import ProofFailed, ProofVerifier
from areal_like.process.wait import NamedWait
from areal_like.serving.engines.base import EngineGone, InferenceEngine
from areal_like.serving.engines.call_limits import LimitedEngine
from areal_like.serving.engines.external.external_engine import ExternalEngine
from areal_like.serving.engines.external.start import ConnectTo, until_ready
from areal_like.serving.engines.registry import engine_spec
from areal_like.serving.pauser import Pauser

OURS = default_engine().name
"""The kind of every server of ours: they have the same routes before any engine."""
DETECT_TIMEOUT_S = 5.0
POLL_S, DETECT_POLL_S = 1.0, 0.5
UNPROVEN_SERVER = (
    "{address} answers like one of our servers but does not prove that it is one, so the key was not sent; start it "
    "with this version (python -m launcher serve), or remove the address"
)
MAX_MISSED_ANSWERS = 3
"""Consecutive failures after which the engine counts as gone."""
CLEANUP_S = 10.0
RUN_ADAPTER = re.compile(r"v\d+(-[0-9a-f]+)?")
"""Names of adapters that runs load."""


@asynccontextmanager
async def attached(
    title: str,
    address: str,
    secret: str,
    proofs: ProofVerifier | None,
    waiting: NamedWait,
    call_timeout_s: float,
    connect: ConnectTo,
) -> AsyncIterator[ExternalEngine]:
    """An engine that runs already, once it generates; it keeps running at the end."""
    engine = connect(address, secret, proofs)
    try:
        await remove_leftovers(engine)
        await until_ready(engine, address, proofs, waiting)
        engine.ended = asyncio.create_task(watch_engine(engine, f"{title} at {address}", call_timeout_s))
        yield engine
    finally:
        if engine.ended is not None:
            engine.ended.cancel()
        await engine.close()


async def prove_attached(address: str, secret: str, key_variable: str, waiting: NamedWait) -> ProofVerifier | None:
    """Called before the key is sent: one of our servers must prove that it knows the key. None for other servers, which
    cannot prove it; the user who gives their address trusts them."""
    while True:
        try:
            response = await request_proof(address)
            break
        except ProofFailed as fault:
            raise Failure(f"rollout.server_addresses: {fault}") from fault
        except (OSError, TimeoutError):
            waiting.check()
        await asyncio.sleep(POLL_S)
    if not response.is_ours:
        return None
    proofs = ProofVerifier(secret, response.start_id)
    try:
        proofs.check(response)
    except ProofFailed as fault:
        held = "another key" if secret else "none"
        raise Failure(
            f"rollout.api_key_var: the server at {address} does not prove that it knows the key of this run. Either it "
            f"has a key and {key_variable} holds {held}, or it is another server, or it listens on another address or "
            "port than the connection was made to (a tunnel must keep both). Put the key of the serving run in "
            f"{key_variable}; nothing was sent"
        ) from fault
    return proofs


async def remove_leftovers(engine: InferenceEngine) -> None:
    """Removes what a killed run has left in the engine: a pause, and adapters."""
    with contextlib.suppress(EngineGone, ValueError, TimeoutError):  # `until_ready` reports the fault
        async with asyncio.timeout(CLEANUP_S):
            if engine.native_pauses:
                await engine.resume()
            for name in await engine.loaded_adapters():
                if RUN_ADAPTER.fullmatch(name):
                    await engine.unload_adapter(name)


async def release_pauses(pauser: Pauser, owners: Sequence[str]) -> None:
    """Resumes what was paused for the run, if the engine still answers."""
    with contextlib.suppress(EngineGone, ValueError, TimeoutError):
        async with asyncio.timeout(CLEANUP_S):
            for owner in owners:
                await pauser.resume(owner)


async def watch_engine(engine: InferenceEngine, what: str, call_timeout_s: float) -> Failure:
    missed, limited = 0, LimitedEngine(engine, call_timeout_s)
    while missed < MAX_MISSED_ANSWERS:
        await asyncio.sleep(POLL_S)
        try:
            await limited.statistics()
        except EngineGone as fault:
            missed += 1
            reason = str(fault)
        else:
            missed = 0
    return Failure(f"{what} (rollout.server_addresses) no longer answers: {reason}")


def parse_address(text: str) -> str:
    """The host:port of an address as users write it."""
    address = text.removeprefix("http://").partition("/")[0]
    if text.startswith("https://"):
        raise Failure(f"rollout.server_addresses: {text}: https is not supported; give host:port of an http server")
    if not address.rpartition(":")[2].isdigit():
        raise Failure(f"rollout.server_addresses: {text}: give host:port")
    return address


async def detect(address: str, secret: str, proofs: ProofVerifier | None, waiting: NamedWait) -> str:
    """The kind of the server at `address`; waits until it answers. With `proofs` nothing is sent before it has proved
    its identity."""
    key = {"Authorization": f"Bearer {secret}"} if secret else {}
    limit = aiohttp.ClientTimeout(total=DETECT_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=ProofConnector(proofs), timeout=limit) as session:
        while True:
            try:
                return await _kind(_Probe(session, f"http://{address}", key), f"http://{address}")
            except (aiohttp.ClientConnectionError, TimeoutError):
                waiting.check()
            await asyncio.sleep(DETECT_POLL_S)


class _Probe:
    """Calls to a server of unknown kind."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> None:
        self._session, self._url, self._headers = session, url, headers

    async def get(self, path: str, with_key: bool = True) -> Any:
        """The JSON response; None for anything else."""
        async with self._session.get(f"{self._url}{path}", headers=self._headers if with_key else {}) as response:
            content = await response.read()
        try:
            return orjson.loads(content) if response.status == 200 else None
        except orjson.JSONDecodeError:
            return None


async def _kind(server: _Probe, url: str) -> str:
    health = await server.get("/health", with_key=False)
    if isinstance(health, dict) and {"run_id", "version"} <= health.keys():
        return OURS
    for keys in sorted(engines(), key=lambda keys: keys.gpu_rank or 0):
        answers_at = engine_spec(keys.name).answers_at
        if answers_at is not None and await answers_at(server):
            return keys.name
    titles = " or ".join(keys.title for keys in gpu_engines())
    raise Failure(
        f"rollout.server_addresses: the server at {url} is not recognized as one of ours, {titles}; set "
        "rollout.server_type, and put its key in the environment variable that rollout.api_key_var names"
    )
