"""HTTP calls to an external engine, with its error responses as exceptions."""

from collections.abc import Sequence
from typing import Any

import aiohttp
import orjson

from areal_like.process.proof_connector import ProofConnector
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.engines.base import EngineGone

CONNECT_S = 10.0
KEEPALIVE_S = 2.0
"""Below the engines' own 5 s: a request sent just when the server closes an idle connection is lost."""
JSON_HEADERS = {"Content-Type": "application/json"}


class RefusedCall(ValueError):
    """A response with a status from 400 to 499."""

    def __init__(self, title: str, status: int, message: str) -> None:
        super().__init__(f"{title} refuses: {message or f'status {status}'}")
        self.status = status


class EngineClient:
    """Calls one engine server, with one connection per concurrent request. With `proofs` the server proves its identity
    on each connection before the secret is sent."""

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
        """Raises RefusedCall, or EngineGone if the engine does not answer or failed."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
            connector = ProofConnector(self._proofs, keepalive_timeout=KEEPALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)
        data = None if body is None else orjson.dumps(body)
        try:
            async with self._session.request(method, self._root + path, data=data, headers=JSON_HEADERS) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineGone(
                f"{self._title} does not answer at {self._root}: {type(error).__name__}: {error}"
            ) from error
        if response.status < 400:
            return content
        message = _message(content)
        if response.status >= 500:
            raise EngineGone(f"{self._title} failed at {path}: {message or f'status {response.status}'}")
        raise RefusedCall(self._title, response.status, message)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _json(content: bytes) -> Any:
    return orjson.loads(content) if content else None


def _message(content: bytes) -> str:
    """The engine's error message, from any of the fields that engines use."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode(errors="replace").strip()
    for name in ("error", "detail", "message", "error_message"):
        body = body.get(name, body) if isinstance(body, dict) else body
    if isinstance(body, Sequence) and not isinstance(body, str):
        return "; ".join(str(part.get("msg", part)) if isinstance(part, dict) else str(part) for part in body)
    return str(body)
