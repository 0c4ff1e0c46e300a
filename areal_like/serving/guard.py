"""The run's token on every route of an engine of others. Runs in its process, on the standard library alone."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from areal_like.process.identity import RUN_HEADER, seal, token

OPEN = (("GET", "/health"), ("GET", "/ping"))
"""They say that it lives, and do nothing."""
REFUSAL = b'{"error":{"message":"this route wants the run\'s token","type":"Refused"}}'
POLICY_VIOLATION = 1008
"""The code with which a WebSocket is closed for this."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class RequireToken:
    """ASGI middleware. Every answer, of a refusal too, says which server of which run gives it."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._secret = f"Bearer {token()}".encode()
        self._seal = (RUN_HEADER.lower().encode(), seal().encode())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif self._may(scope):
            await self._app(scope, receive, self._sealing(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            await _refuse(self._sealing(send))

    def _may(self, scope: Message) -> bool:
        if scope["type"] == "http" and (scope["method"], scope["path"]) in OPEN:
            return True
        said = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        return len(said) == 1 and hmac.compare_digest(said[0], self._secret)

    def _sealing(self, send: Send) -> Send:
        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), self._seal]}
            await send(message)

        return sealed


async def _refuse(send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(REFUSAL)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSAL})
