"""The attendant's routes: those of every server of a run. What commands or trains wants the run's token."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import orjson
from aiohttp import web

from areal_like.process.errors import Failure, HttpError
from areal_like.process.http import application, body_field, json_response, read_json
from areal_like.process.identity import ATTEMPT_HEADER, CallGuard
from areal_like.process.request_checks import BodyLimits
from areal_like.serving.control_protocol import (
    MAX_CALL_BYTES,
    control_routes,
    parse_ids,
    parse_mode,
    parse_probe,
    parse_update,
)
from areal_like.serving.external.base import EngineGone, EngineInfo, InferenceEngine
from areal_like.serving.external.parts import ServerParts
from areal_like.serving.external.public_proxy import PublicProxy
from areal_like.serving.open_paths import access_paths, max_client_bytes
from areal_like.weights.errors import GroupBroken

DISCONNECT_CHECK_S = 0.25
"""How often it is looked whether a client that waits is still there."""
EXIT_DETECTED_S = 4.0
"""Until then it is known whether an engine that did not answer is gone."""
CONTROLLER = "told"
"""Whose rest it is that the controller asks for."""

log = logging.getLogger(__name__)


class ExternalEngineServer:
    """`gone` ends when the engine has; `fatal` is set when this process has to end for another reason. `model` is the
    name under which clients of others ask for it; `is_open`: everybody may generate."""

    def __init__(
        self,
        engine: InferenceEngine,
        info: EngineInfo,
        gone: "asyncio.Future[Failure]",
        parts: ServerParts,
        proxy: PublicProxy,
        guard: CallGuard,
        run_id: str,
        model: str,
        is_open: bool = False,
    ) -> None:
        self.fatal: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self._engine, self._info, self._gone = engine, info, gone
        self._guard, self._run_id, self._model = guard, run_id, model
        self._is_open = is_open
        self._queue, self._pauser, self._served = parts.queue, parts.pauser, parts.served
        self._generation, self._updates, self._proxy = parts.generation, parts.updates, proxy
        guard.on_new_attempt = self._on_new_attempt
        proxy.knows = guard.knows
        self._tasks: set[asyncio.Task[None]] = set()

    def application(self) -> web.Application:
        limits = BodyLimits(of_run=MAX_CALL_BYTES, of_others=max_client_bytes(self._info.context_length))
        app = application(self._guard, *access_paths(self._is_open), limits)
        app.add_routes([*control_routes(self, self), *self._proxy.routes()])
        return app

    async def health(self, request: web.Request) -> web.Response:
        paused = self._pauser.mode(CONTROLLER) is not None
        status = "broken" if self._served.fault is not None else "paused" if paused else "ok"
        engine = {"engine": self._info.engine, "engine_version": self._info.version}
        said = {
            "status": status,
            "run_id": self._run_id,
            "model": self._model,
            "version": self._served.reported_version,
        }
        return json_response({**said, **engine, "processes": self._info.processes})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """One line for each group, as soon as it is finished."""
        self._refuse_where_broken()
        if not self._served.is_current:
            raise HttpError(503, "this server was given no weights by the run yet")
        groups = body_field(await read_json(request), "groups", list)
        attempt = int(request.headers[ATTEMPT_HEADER])
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        done: asyncio.Queue[asyncio.Task[dict[str, Any]]] = asyncio.Queue()
        tasks = [asyncio.create_task(self._line(group, attempt)) for group in groups]
        for task in tasks:
            task.add_done_callback(done.put_nowait)
        try:
            await _write(request, response, done, len(tasks))
        except EngineGone as stop:
            log.warning("answers are cut off: %s", stop)
            if request.transport is not None:
                request.transport.abort()  # so that a client sees no end to it, and asks another server
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return response

    async def _line(self, said: Any, attempt: int) -> dict[str, Any]:
        """A group that the engine failed at has an error; one whose engine is gone has no answer at all."""
        try:
            return await self._generation.line(said, attempt)
        except EngineGone as stop:
            await asyncio.wait([self._gone, self.fatal], timeout=EXIT_DETECTED_S, return_when=asyncio.FIRST_COMPLETED)
            if self._gone.done() or self.fatal.done():
                raise
            return {"id": str(said.get("id", "")), "error": str(stop)}

    async def update_weights(self, request: web.Request) -> web.Response:
        order = parse_update(await read_json(request))
        attempt = self._guard.attempt
        with self._told_in_words():
            return json_response(await self._updates.update(order, lambda: self._guard.attempt == attempt))

    async def stage_weights(self, request: web.Request) -> web.Response:
        with self._told_in_words():
            return json_response(await self._updates.stage(parse_update(await read_json(request))))

    async def commit_weights(self, request: web.Request) -> web.Response:
        said = await read_json(request)
        attempt = self._guard.attempt
        version = body_field(said, "version", int)
        mode = parse_mode(said) if said.get("mode") else None  # else as it was staged
        with self._told_in_words():
            done = await self._updates.commit(version, mode, parse_probe(said), lambda: self._guard.attempt == attempt)
            return json_response(done)

    async def pause(self, request: web.Request) -> web.Response:
        mode = parse_mode(await read_json(request))
        with self._told_in_words():
            mode = self._pauser.settled(mode)
            await self._pauser.begin(CONTROLLER, mode)
        return json_response({"paused": True, "mode": mode, "running": self._queue.running})

    async def resume(self, request: web.Request) -> web.Response:
        with self._told_in_words():
            await self._pauser.end(CONTROLLER)
        return json_response({"paused": False})

    async def abort(self, request: web.Request) -> web.Response:
        meant = parse_ids(await read_json(request))
        count = self._generation.end("aborted: as told", lambda in_flight: meant is None or in_flight.group.id in meant)
        return json_response({"aborted": count})

    async def fingerprint(self, request: web.Request) -> web.Response:
        with self._told_in_words():
            return json_response(await self._updates.fingerprint())

    async def statistics(self, request: web.Request) -> web.Response:
        with self._told_in_words():
            found = await self._engine.statistics()
        counts = {**vars(self._generation.counts), "busy_s": self._queue.busy_s}
        waiting = found.get("waiting", 0) + self._queue.waiting
        return json_response({**found, **counts, "waiting": waiting, "version": self._served.reported_version})

    @contextlib.contextmanager
    def _told_in_words(self) -> Iterator[None]:
        """What an engine does not do is refused; what leaves it unusable ends this process."""
        self._refuse_where_broken()
        try:
            yield
        except ValueError as refusal:
            raise HttpError(409, str(refusal)) from refusal
        except (EngineGone, GroupBroken) as stop:
            raise HttpError(503, str(stop)) from stop
        except Failure as failure:
            if not self.fatal.done():
                self.fatal.set_result(failure)
            raise HttpError(500, str(failure)) from failure

    def _refuse_where_broken(self) -> None:
        if self._served.fault is not None:
            raise HttpError(503, f"this server is broken: {self._served.fault}")

    def _on_new_attempt(self, attempt: int) -> None:
        self._updates.forget()
        why = f"aborted: this is of an earlier attempt, and the run is at attempt {attempt}"
        self._generation.end(why, lambda in_flight: in_flight.attempt < attempt)
        task = asyncio.create_task(self._pauser.end(CONTROLLER))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _write(
    request: web.Request,
    response: web.StreamResponse,
    done: "asyncio.Queue[asyncio.Task[dict[str, Any]]]",
    missing: int,
) -> None:
    """Whatever is finished, in one piece. Ends early when the client is gone."""
    while missing:
        try:
            finished = [await asyncio.wait_for(done.get(), DISCONNECT_CHECK_S)]
        except TimeoutError:
            if request.transport is None or request.transport.is_closing():
                return
            continue
        while not done.empty():
            finished.append(done.get_nowait())
        missing -= len(finished)
        lines = b"".join(orjson.dumps(task.result(), option=orjson.OPT_APPEND_NEWLINE) for task in finished)
        try:
            await response.write(lines)
        except ConnectionError:
            return
