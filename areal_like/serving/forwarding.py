"""Forwards every call to one of our servers that runs elsewhere (`serve`)."""

import asyncio
import os

import aiohttp
import orjson
from aiohttp import web

from areal_like.process.errors import Failure, HttpError
from areal_like.process.http import application, error_message, json_response
from areal_like.process.identity import (
    ATTEMPT_HEADER,
    INCARNATION_HEADER,
    PROCESS_HEADER,
    CallGuard,
    Identity,
    call_headers,
)
from areal_like.process.proof_connector import ProofConnector
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.process.request_checks import BodyLimits
from areal_like.process.wait import NamedWait
from areal_like.serving.client_connection import while_connected
from areal_like.serving.control_protocol import CLIENT_PATHS, HEALTH, MAX_CALL_BYTES, OPEN_PATHS, QUERY_PATHS
from areal_like.serving.engines.base import REQUEST_TIMEOUT

CONTROL_POST = ("update_weights", "stage_weights", "commit_weights", "pause", "resume", "abort")
CONTROL_GET = ("fingerprint", "statistics")
PAUSE_S = 0.5
POLL_S = 1.0
MAX_MISSED_ANSWERS = 3
"""Consecutive failures after which the server counts as gone."""
CALL_TIMEOUT_S = 10.0


class ForwardingServer:
    """The run that attached last owns the server: calls carry an attempt number above the server's newest, as the run's
    own could be below that of the previous run. `secret` is the key of the other server, which proves its identity."""

    def __init__(
        self,
        address: str,
        secret: str,
        proofs: ProofVerifier,
        guard: CallGuard,
        run_id: str,
        key_variable: str,
        request_timeout_s: float,
    ) -> None:
        self._address, self._proofs = address, proofs
        self._secret, self._run_id, self._key_variable = secret, run_id, key_variable
        self._session: aiohttp.ClientSession | None = None
        self._limit_s = request_timeout_s
        self._attempt: int | None = None
        self._lock = asyncio.Lock()
        guard.on_new_attempt = self._on_new_attempt
        self._guard = guard

    def application(self) -> web.Application:
        app = application(self._guard, OPEN_PATHS, CLIENT_PATHS, BodyLimits(of_run=MAX_CALL_BYTES))
        app.add_routes(
            [
                web.get(HEALTH, self.health),
                self._route("POST", "/generate"),
                *(self._route("POST", f"/control/{name}") for name in CONTROL_POST),
                *(self._route("GET", f"/control/{name}") for name in CONTROL_GET),
                *(self._route("GET", path) for path in QUERY_PATHS),
                *(self._route("POST", path) for path in CLIENT_PATHS),
            ]
        )
        return app

    def _route(self, method: str, path: str) -> web.RouteDef:
        """The forwarded path is this constant, not the client's spelling. The other server's key is sent only on paths
        that are not open here."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._forward(request, method, path)

        return web.route(method, path, handle)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ready(self, me: Identity, waiting: NamedWait) -> None:
        """Waits for the server and takes it over; it forgets the weights of another run."""
        while True:
            try:
                attempt = await self._newest_attempt()
                headers = call_headers(Identity(me.role, me.index, attempt, me.incarnation), self._secret)
                status, content = await self._get("/control/statistics", headers)
                break
            except (aiohttp.ClientConnectionError, TimeoutError):
                waiting.check()
            await asyncio.sleep(PAUSE_S)
        if status == 401:
            held = "has another value" if os.environ.get(self._key_variable) else "is not set"
            raise Failure(
                f"rollout.api_key_var: the server at {self._address} requires its run's token, but "
                f"{self._key_variable} {held}; set it to the token of that run"
            )
        if status >= 400:
            raise Failure(f"rollout.server_addresses: {self._address} refuses this run: {error_message(content)}")

    async def _newest_attempt(self) -> int:
        """One above the server's attempt when this run attached or was recovered."""
        async with self._lock:
            if self._attempt is None:
                _, content = await self._get(HEALTH, {})
                self._attempt = 1 + int(orjson.loads(content).get("attempt", 0))
            return self._attempt

    async def wait_until_gone(self) -> Failure:
        """Returns when the server no longer answers."""
        missed, reason = 0, ""
        while missed < MAX_MISSED_ANSWERS:
            await asyncio.sleep(POLL_S)
            try:
                await self._get(HEALTH, {})
            except (aiohttp.ClientError, TimeoutError) as fault:
                missed += 1
                reason = str(fault) or type(fault).__name__
            else:
                missed = 0
        return Failure(f"the server at {self._address} (rollout.server_addresses) no longer answers: {reason}")

    async def health(self, request: web.Request) -> web.Response:
        try:
            status, content = await self._get("/health", {})
        except (aiohttp.ClientError, TimeoutError) as fault:
            raise HttpError(503, f"{self._address} does not answer: {fault}") from fault
        return json_response({**orjson.loads(content), "run_id": self._run_id}, status)

    async def _forward(self, request: web.Request, method: str, path: str) -> web.StreamResponse:
        """Bodies are unchanged in both directions."""
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        if path not in OPEN_PATHS:
            headers["Authorization"] = f"Bearer {self._secret}"
        body = await request.read()
        try:
            if path not in (*OPEN_PATHS, *CLIENT_PATHS):
                headers |= {
                    PROCESS_HEADER: request.headers.get(PROCESS_HEADER, "?"),
                    ATTEMPT_HEADER: str(await self._newest_attempt()),
                    INCARNATION_HEADER: request.headers.get(INCARNATION_HEADER, "1"),
                }
            call = self._open().request(method, f"http://{self._address}{path}", data=body, headers=headers)
            source = await while_connected(request, call)
        except TimeoutError as late:
            limit = f"{self._limit_s:g} s ({REQUEST_TIMEOUT})"
            raise HttpError(503, f"{self._address} did not answer within {limit}") from late
        except aiohttp.ClientError as fault:
            raise HttpError(503, f"{self._address} does not answer: {fault or type(fault).__name__}") from fault
        async with source:
            response = web.StreamResponse(status=source.status)
            response.headers["Content-Type"] = source.headers.get("Content-Type", "application/octet-stream")
            await response.prepare(request)
            try:
                while part := await while_connected(request, source.content.readany()):
                    await response.write(part)
            except (aiohttp.ClientError, TimeoutError):
                if request.transport is not None:
                    request.transport.abort()  # a regular end would look like the end of the answer
            except ConnectionError:
                pass  # the client is gone
        return response

    async def _get(self, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        limit = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
        async with self._open().get(f"http://{self._address}{path}", headers=headers, timeout=limit) as response:
            return response.status, await response.read()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = ProofConnector(self._proofs)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=self._limit_s)
            )
        return self._session

    def _on_new_attempt(self, attempt: int) -> None:
        self._attempt = None
