"""ASGI middleware that requires the run's token on every route of an external engine. Runs in the engine's process;
imports the standard library alone."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from areal_like.process.identity import RUN_HEADER, start_id, token
from areal_like.process.server_proof import NONCE_HEADER, PROOF_HEADER, PROOF_PATH, endpoint_of, make_proof

OPEN_ROUTES = (("GET", "/health"), ("GET", "/ping"))
"""Health checks: they change nothing."""
REFUSAL = b'{"error":{"message":"this route requires the run\'s token","type":"Refused"}}'
POLICY_VIOLATION = 1008
"""Close code of a WebSocket without the token."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class RequireToken:
    """Every response has a header with the server's identity; a request with a nonce gets the proof of it."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._token, self._start_id = token(), start_id()
        self._secret = f"Bearer {self._token}".encode()
        self._identity_header = (RUN_HEADER.lower().encode(), self._start_id.encode())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and (scope["method"], scope["path"]) == ("GET", PROOF_PATH):
            await self._prove(scope, self._with_identity(send))
        elif self._is_allowed(scope):
            await self._app(scope, receive, self._with_identity(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            await _refuse(self._with_identity(send))

    def _is_allowed(self, scope: Message) -> bool:
        if scope["type"] == "http" and (scope["method"], scope["path"]) in OPEN_ROUTES:
            return True
        values = _header_values(scope, "Authorization")
        return len(values) == 1 and hmac.compare_digest(values[0], self._secret)

    async def _prove(self, scope: Message, send: Send) -> None:
        """Sends the proof for the address and port of the connection; those in the request could be forged."""
        nonces, endpoint = _header_values(scope, NONCE_HEADER), endpoint_of(scope["server"])
        proof = None
        if endpoint is not None and len(nonces) == 1:
            proof = make_proof(self._token, nonces[0].decode("latin-1"), endpoint, self._start_id)
        headers = [(b"content-length", b"0")]
        if proof is not None:
            headers.append((PROOF_HEADER.lower().encode(), proof.encode()))
        await send({"type": "http.response.start", "status": 400 if proof is None else 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _with_identity(self, send: Send) -> Send:
        async def send_with_identity(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), self._identity_header]}
            await send(message)

        return send_with_identity


def _header_values(scope: Message, name: str) -> list[bytes]:
    return [value for key, value in scope["headers"] if key.lower() == name.lower().encode()]


async def _refuse(send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(REFUSAL)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSAL})
