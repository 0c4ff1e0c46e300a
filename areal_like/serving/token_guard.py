"""The run's token on every route of an engine of others. Runs in its process, on the standard library alone."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from areal_like.process.identity import RUN_HEADER, start_id, token
from areal_like.process.server_proof import NONCE_HEADER, PROOF_HEADER, PROOF_PATH, endpoint_of, make_proof

OPEN_ROUTES = (("GET", "/health"), ("GET", "/ping"))
"""They say that it lives, and do nothing."""
REFUSAL = b'{"error":{"message":"this route wants the run\'s token","type":"Refused"}}'
POLICY_VIOLATION = 1008
"""The code with which a WebSocket is closed for this."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class RequireToken:
    """ASGI middleware. Every answer, of a refusal too, says which server of which run gives it; that this is true is
    proved to whoever sends a nonce."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._token, self._own_seal = token(), start_id()
        self._secret = f"Bearer {self._token}".encode()
        self._seal = (RUN_HEADER.lower().encode(), self._own_seal.encode())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and (scope["method"], scope["path"]) == ("GET", PROOF_PATH):
            await self._prove(scope, self._sealing(send))
        elif self._may(scope):
            await self._app(scope, receive, self._sealing(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            await _refuse(self._sealing(send))

    def _may(self, scope: Message) -> bool:
        if scope["type"] == "http" and (scope["method"], scope["path"]) in OPEN_ROUTES:
            return True
        said = _all_of(scope, "Authorization")
        return len(said) == 1 and hmac.compare_digest(said[0], self._secret)

    async def _prove(self, scope: Message, send: Send) -> None:
        """For the address and port of the connection, whatever the question says of them."""
        asked, place = _all_of(scope, NONCE_HEADER), endpoint_of(scope["server"])
        proof = None
        if place is not None and len(asked) == 1:
            proof = make_proof(self._token, asked[0].decode("latin-1"), place, self._own_seal)
        headers = [(b"content-length", b"0")]
        if proof is not None:
            headers.append((PROOF_HEADER.lower().encode(), proof.encode()))
        await send({"type": "http.response.start", "status": 400 if proof is None else 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _sealing(self, send: Send) -> Send:
        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), self._seal]}
            await send(message)

        return sealed


def _all_of(scope: Message, name: str) -> list[bytes]:
    return [value for key, value in scope["headers"] if key.lower() == name.lower().encode()]


async def _refuse(send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(REFUSAL)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSAL})
