"""Calls of the routes of an engine of others, and what its answers mean."""

from collections.abc import Sequence
from typing import Any

import aiohttp
import orjson

from areal_like.process.proof_connector import ProofConnector
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.external.base import EngineGone

CONNECT_S = 10.0
KEEPALIVE_S = 2.0
"""So long a connection without work is kept: those servers close one after 5 s, and what is sent just then is lost."""
JSON_HEADERS = {"Content-Type": "application/json"}


class RefusedCall(ValueError):
    """An answer that says no."""

    def __init__(self, title: str, status: int, said: str) -> None:
        super().__init__(f"{title} refuses: {said or f'status {status}'}")
        self.status = status


class EngineClient:
    """One server's. A connection for each request under way, since each waits for its whole answer. With `proofs` each
    is proved before the secret goes over it."""

    def __init__(self, title: str, address: str, secret: str, proofs: ProofVerifier | None = None) -> None:
        self._title, self._proofs = title, proofs
        self._root = address if "://" in address else f"http://{address}"
        self._headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: Any = None) -> Any:
        return _json(await self.read("POST", path, body))

    async def get(self, path: str) -> Any:
        return _json(await self.read("GET", path))

    async def read(self, method: str, path: str, body: Any = None) -> bytes:
        """Raises Refusal, or Stopped where the engine is gone or failed."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
            connector = ProofConnector(self._proofs, keepalive_timeout=KEEPALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)
        data = None if body is None else orjson.dumps(body)
        try:
            async with self._session.request(method, self._root + path, data=data, headers=JSON_HEADERS) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineGone(
                f"{self._title} does not answer at {self._root}: {type(error).__name__}: {error}"
            ) from error
        if answer.status < 400:
            return content
        said = _message(content)
        if answer.status >= 500:
            raise EngineGone(f"{self._title} failed at {path}: {said or f'status {answer.status}'}")
        raise RefusedCall(self._title, answer.status, said)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _json(content: bytes) -> Any:
    return orjson.loads(content) if content else None


def _message(content: bytes) -> str:
    """The engine's own words, wherever it puts them."""
    try:
        said = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode(errors="replace").strip()
    for name in ("error", "detail", "message", "error_message"):
        said = said.get(name, said) if isinstance(said, dict) else said
    if isinstance(said, Sequence) and not isinstance(said, str):
        return "; ".join(str(part.get("msg", part)) if isinstance(part, dict) else str(part) for part in said)
    return str(said)
