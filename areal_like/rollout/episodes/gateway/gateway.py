"""The HTTP server of agents: on loopback, with an address and a key for each episode, which end with it."""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web

from areal_like.process.connection_limits import RUNNER
from areal_like.process.errors import HttpError
from areal_like.process.http import HttpServer, json_response, serve
from areal_like.process.request_checks import MIB, BodyLimits, read_body, refuse_page
from areal_like.rollout.episodes.gateway.chat_route import chat_completions
from areal_like.rollout.episodes.gateway.completions_route import completions
from areal_like.rollout.episodes.gateway.further_routes import detokenize, models, reward, tokenize
from areal_like.rollout.episodes.gateway.messages_route import count_tokens, messages
from areal_like.rollout.episodes.gateway.responses_route import responses
from areal_like.rollout.episodes.gateway.session import CONTEXT_EXCEEDED, AgentSession

HOST = "127.0.0.1"
LIMITS = BodyLimits(of_others=16 * MIB)
NO_KEY = "0" * 64
RUN_HEADER = "X-Environment-Run"
"""Of a call: the run of an agent that it is of, where an environment says it."""

log = logging.getLogger(__name__)

Route = Callable[[web.Request, AgentSession], Awaitable[web.StreamResponse]]

ROUTES: tuple[tuple[str, str, Route], ...] = (
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/chat/completions/tokens", chat_completions),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/responses", responses),
    ("POST", "/v1/messages", messages),
    ("POST", "/v1/messages/count_tokens", count_tokens),
    ("POST", "/v1/reward", reward),
    ("GET", "/v1/models", models),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
)
GENERATING: tuple[Route, ...] = (chat_completions, completions, responses, messages)


class Endpoint(NamedTuple):
    """How an agent reaches the policy. `url` is without the version, as Anthropic's clients take it."""

    url: str
    key: str

    @property
    def base_url(self) -> str:
        """As OpenAI's clients take it."""
        return f"{self.url}/v1"


class _Open(NamedTuple):
    session: AgentSession
    key: str


class Gateway:
    """Starts with the first episode of an agent."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Open] = {}
        self._server: HttpServer | None = None
        self._starting = asyncio.Lock()

    async def open(self, session: AgentSession) -> Endpoint:
        async with self._starting:
            if self._server is None:
                self._server = await serve(self._application(), HOST)
        name, key = secrets.token_hex(8), secrets.token_hex(32)
        self._sessions[name] = _Open(session, key)
        return Endpoint(f"http://{self._server.address}/{name}", key)

    async def end(self, endpoint: Endpoint) -> None:
        """Its key is refused from now on, and what is still generated for it is ended."""
        opened = self._sessions.pop(endpoint.url.rpartition("/")[2], None)
        if opened is not None:
            await opened.session.close()

    async def close(self) -> None:
        for opened in self._sessions.values():
            await opened.session.close()
        self._sessions.clear()
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    def _application(self) -> web.Application:
        app = web.Application()
        for method, path, route in ROUTES:
            app.router.add_route(method, "/{episode}" + path, self._handler(route))
        app.router.add_route("*", "/{rest:.*}", self._handler(None))
        return app

    def _handler(self, route: Route | None) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            session = self._session_of(request)
            if RUNNER in request.app:
                request.app[RUNNER].on_request(request, session is not None)
            if session is None:
                page = refuse_page(request)
                return refusal(*page) if page is not None else refusal(401, "this address requires its episode's key")
            if route is None:
                return refusal(404, "there is no such route")
            try:
                return await route(await read_body(request, LIMITS, is_of_run=False), session)
            except HttpError as refused:
                session.refused(refused.message, route in GENERATING)
                return refusal(refused.status, refused.message)
            except web.HTTPException as refused:
                return refusal(refused.status, refused.text or refused.reason)
            except RecursionError:
                return refusal(400, "the body is nested too deeply")
            except Exception as fault:
                log.exception("%s %r", request.method, request.path)
                return refusal(500, f"{type(fault).__name__}: {fault}")

        return handle

    def _session_of(self, request: web.Request) -> AgentSession | None:
        """None without the key of the episode that the address names."""
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get("X-Api-Key", "")
        opened = self._sessions.get(request.match_info.get("episode") or request.path.split("/")[1])
        expected = NO_KEY if opened is None else opened.key
        is_right = hmac.compare_digest(shown.encode(errors="surrogateescape"), expected.encode())
        return opened.session.run(request.headers.get(RUN_HEADER, "")) if is_right and opened is not None else None


def refusal(status: int, message: str) -> web.Response:
    """As clients of OpenAI and Anthropic read it; they repeat a request after a status of 408, 409, 429 or from 500."""
    code = CONTEXT_EXCEEDED if message.startswith(CONTEXT_EXCEEDED) else None
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return json_response({"type": "error", "error": error}, status)
