"""What answers at an address: a server of ours, vLLM or SGLang."""

import asyncio
from typing import Any

import aiohttp
import orjson

from areal_like.process.errors import Failure
from areal_like.process.proof_connector import ProofConnector
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.process.wait import NamedWait

EMBEDDED, VLLM, SGLANG = "embedded", "vllm", "sglang"
PAUSE_S = 0.5
CALL_TIMEOUT_S = 5.0


def parse_address(said: str) -> str:
    """From an address as users write it."""
    address = said.removeprefix("http://").partition("/")[0]
    if said.startswith("https://"):
        raise Failure(f"rollout.server_addresses: {said}: https is not spoken here; give host:port of a plain one")
    if not address.rpartition(":")[2].isdigit():
        raise Failure(f"rollout.server_addresses: {said}: give host:port")
    return address


async def detect(address: str, secret: str, proofs: ProofVerifier | None, waiting: NamedWait) -> str:
    """Asks until something answers; with `proofs` nothing is sent before it has proved itself."""
    key = {"Authorization": f"Bearer {secret}"} if secret else {}
    limit = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=ProofConnector(proofs), timeout=limit) as session:
        while True:
            try:
                return await _kind(session, f"http://{address}", key)
            except (aiohttp.ClientConnectionError, TimeoutError):
                waiting.check()
            await asyncio.sleep(PAUSE_S)


async def _kind(session: aiohttp.ClientSession, url: str, key: dict[str, str]) -> str:
    health = await _get(session, f"{url}/health", {})
    if isinstance(health, dict) and {"run_id", "version"} <= health.keys():
        return EMBEDDED  # or an attendant: both speak our language
    models = await _get(session, f"{url}/v1/models", key)
    if isinstance(models, dict):
        owners = {model.get("owned_by") for model in models.get("data", []) if isinstance(model, dict)}
        if VLLM in owners:
            return VLLM
    for path in ("server_info", "get_server_info"):
        if isinstance(await _get(session, f"{url}/{path}", key), dict):
            return SGLANG
    raise Failure(
        f"rollout.server_addresses: what answers at {url} is neither a server of ours nor vLLM nor SGLang that lets "
        "itself be asked; say what it is by rollout.server_type, and give its key in the environment variable that "
        "rollout.api_key_var names"
    )


async def _get(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> Any:
    """What is there as JSON; None for anything else."""
    async with session.get(url, headers=headers) as response:
        content = await response.read()
    try:
        return orjson.loads(content) if response.status == 200 else None
    except orjson.JSONDecodeError:
        return None
