"""HTTP between the processes of a run: a server that authenticates callers, and an asyncio client."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import orjson
from aiohttp import web

from areal_like.process import pulse
from areal_like.process.connection_limits import RUNNER, LimitedAppRunner
from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.frames import Frame, unpack
from areal_like.process.identity import CallGuard, Identity, call_headers
from areal_like.process.loop_threads import Threads
from areal_like.process.proof_connector import ProofConnector
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.process.request_checks import HOST, BodyLimits, Refusal, read_body, refuse_page
from areal_like.process.server_proof import NONCE_HEADER, PROOF_HEADER, PROOF_PATH, endpoint_of

DEFAULT_LIMITS = BodyLimits()
SHUTDOWN_S = 1.0
BEAT_S = 1.0

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)


def application(
    guard: CallGuard | None,
    open_paths: Sequence[str] = (),
    keyed_paths: Sequence[str] = (),
    limits: BodyLimits = DEFAULT_LIMITS,
) -> web.Application:
    """An application that accepts only calls of this run, except on `open_paths`, open to all, and on `keyed_paths`,
    which require only the token. Paths must match exactly: an escaped or denormalized spelling is another path."""

    free, keyed = frozenset(open_paths), frozenset(keyed_paths)
    clients = free | keyed

    def refuse(request: web.Request, is_known: bool) -> Refusal | None:
        if not is_known and (page := refuse_page(request)) is not None:
            return page
        path = request.rel_url.raw_path
        if guard is None or path in free or (path in keyed and is_known):
            return None
        if path in keyed:
            return 401, "this route requires a key: Authorization: Bearer KEY"
        return guard.refuse(request.headers)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_known = guard is None or guard.knows(request.headers)
        if RUNNER in request.app:
            request.app[RUNNER].on_request(request, is_known)
        if guard is not None and request.rel_url.raw_path == PROOF_PATH:
            return _proof(request, guard)
        refused = refuse(request, is_known)
        if refused is not None:
            return error_response(*refused)
        try:
            is_of_run = is_known and request.rel_url.raw_path not in clients
            return await handler(await read_body(request, limits, is_of_run))
        except HttpError as refusal:
            return error_response(refusal.status, refusal.message)
        except web.HTTPException as answer:
            return error_response(answer.status, answer.text or answer.reason) if answer.status >= 400 else answer
        except asyncio.CancelledError:
            raise
        except orjson.JSONDecodeError as broken:
            return error_response(400, f"the body is not JSON: {broken}")
        except Exception as fault:
            if request.transport is None or request.transport.is_closing():
                # The client has gone, or its connection was closed at a limit: nobody reads the answer.
                log.debug("%s %r: the connection is closed: %s", request.method, request.path, fault)
            else:
                log.exception("%s %r", request.method, request.path)
            return error_response(500, f"{type(fault).__name__}: {fault}")

    # The body's limit depends on the caller, and is applied where it is read.
    return web.Application(middlewares=[check])


def _proof(request: web.Request, guard: CallGuard) -> web.Response:
    """For the address and port of the connection, not those in the request's headers."""
    endpoint = None if request.transport is None else endpoint_of(request.transport.get_extra_info("sockname"))
    proof = None if endpoint is None else guard.prove(request.headers.get(NONCE_HEADER, ""), endpoint)
    if proof is None:
        return error_response(400, f"{NONCE_HEADER}: send 32 bytes as 64 hexadecimal digits")
    return web.Response(headers={PROOF_HEADER: proof})


def json_response(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


def binary_response(content: bytes) -> web.Response:
    return web.Response(body=content, content_type="application/octet-stream")


def error_response(status: int, message: str) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return json_response({"error": {"message": message, "type": kind}}, status)


async def read_json(request: web.Request) -> Any:
    return orjson.loads(await request.read() or b"null")


async def read_frame(request: web.Request) -> Frame:
    """Raises HttpError if the body is not a frame."""
    try:
        frame = unpack(await request.read())
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as broken:
        raise HttpError(400, f"the body is not a frame: {broken}") from broken
    if not isinstance(frame.header, dict):
        raise HttpError(400, "the body is a frame without a header")
    return frame


def body_field(body: Any, name: str, kind: type, default: Any = None) -> Any:
    """One field of a JSON body; null counts as missing. Raises HttpError if missing without a default, or of another
    type."""
    value = body.get(name) if isinstance(body, Mapping) else None
    if value is None and default is not None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise HttpError(400, f"{name}: missing from the body, or not of the right type")
    return value


def body_int(body: Any, name: str, least: int = 0) -> int:
    """The same for a whole number."""
    value: int = body_field(body, name, int)
    if not least <= value < 1 << 53:
        raise HttpError(400, f"{name}: {value} is not a whole number from {least} on")
    return value


class HttpServer:
    """A running server; others call it at `address`."""

    def __init__(self, runner: web.AppRunner, address: str) -> None:
        self.address = address
        self._runner = runner

    async def close(self) -> None:
        await self._runner.cleanup()


async def serve(app: web.Application, host: str, port: int = 0) -> HttpServer:
    """Port 0: any free port."""
    app[HOST] = host
    runner = LimitedAppRunner(app, SHUTDOWN_S)
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=2048).start()
    return HttpServer(runner, f"{host}:{runner.addresses[0][1]}")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, with uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_with_pulse(main))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_with_pulse(main))


async def _with_pulse(main: Coroutine[Any, Any, T]) -> T:
    """What blocks the loop, or stops the process, stops its pulse."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Threads())
    with pulse.loop_phase() as slot:

        def beat() -> None:
            slot.advance()
            beats[:] = [loop.call_later(BEAT_S, beat)]

        beats = [loop.call_later(BEAT_S, beat)]
        try:
            return await main
        finally:
            beats[0].cancel()


class HttpClient:
    """Calls other processes of the run, with pooled connections. On each connection the server proves that it knows the
    token before the token is sent."""

    def __init__(self, me: Identity, secret: str) -> None:
        self._headers, self._proofs = call_headers(me, secret), ProofVerifier(secret)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=ProofConnector(self._proofs, keepalive_timeout=60),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """For answers that are streamed."""
        assert self._session is not None, "an HttpClient is used inside `async with`"
        return self._session

    async def json(self, method: str, address: str, path: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        return orjson.loads(await self._call(method, address, path, body, timeout_s))

    async def frame(self, method: str, address: str, path: str, body: Any = None, timeout_s: float = 60.0) -> Frame:
        return unpack(await self._call(method, address, path, body, timeout_s))

    async def _call(self, method: str, address: str, path: str, body: Any, timeout_s: float) -> bytes:
        """`body` is sent as it is where it is bytes, else as JSON."""
        data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self.session.request(method, f"http://{address}{path}", data=data, timeout=limit) as response:
                content = await response.read()
        except TimeoutError:
            raise Unreachable(address, f"no answer to {path} within {timeout_s:g} s") from None
        except aiohttp.ClientError as fault:
            raise Unreachable(address, f"{path}: {fault or type(fault).__name__}") from fault
        if response.status >= 400:
            raise HttpError(response.status, error_message(content))
        return content


def error_message(content: bytes) -> str:
    """The message in an error's body, from this package's servers or external engines."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode("utf-8", "replace")[:2000]
    if isinstance(body, dict):
        error = body.get("error", body.get("message", body))
        return str(error.get("message", error) if isinstance(error, dict) else error)
    return str(body)
