"""The HTTP server of a run in front of an engine: every route, and the status of every fault."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from areal_like.process import pulse
from areal_like.process.errors import NOT_STAGED, Failure, HttpError
from areal_like.process.http import application, body_field, json_response, read_json
from areal_like.process.identity import ATTEMPT_HEADER, CallGuard
from areal_like.process.request_checks import BodyLimits
from areal_like.serving.adapters import Adapters
from areal_like.serving.client_access import ServerAccess
from areal_like.serving.client_connection import DISCONNECT_CHECK_S, is_disconnected
from areal_like.serving.control_protocol import (
    ADAPTER,
    ANY_WEIGHTS,
    MAX_CALL_BYTES,
    access_paths,
    control_routes,
    max_client_bytes,
    parse_ids,
    parse_mode,
    parse_probe,
    parse_update,
)
from areal_like.serving.engines.base import EngineGone, InferenceEngine, NotStaged
from areal_like.serving.engines.call_limits import LimitedEngine
from areal_like.serving.engines.engine_pulse import Load
from areal_like.serving.expected_tensors import ExpectedTensors
from areal_like.serving.generation import Generation
from areal_like.serving.pauser import Pauser
from areal_like.serving.probe_check import ProbeCheck
from areal_like.serving.request_queue import RequestQueue
from areal_like.serving.served_weights import ServedWeights
from areal_like.serving.updates import WeightUpdater
from areal_like.weights.errors import GroupBroken

EXIT_DETECTED_S = 4.0
"""Time after a failed call within which the end of the engine is noticed."""
CONTROLLER = "controller"
"""Pause owner: the controller."""

log = logging.getLogger(__name__)


class ServerSettings(NamedTuple):
    """`accepted_run`: the run whose weights are accepted, None for any. `model`: its name for clients. `is_open`:
    generation needs no token. `is_attached`: the engine ran before, and is not ended with this process."""

    run_id: str
    accepted_run: str | None
    model: str
    model_folder: Path
    request_timeout_s: float
    call_timeout_s: float
    is_open: bool = False
    is_attached: bool = False


class InferenceServer:
    """Must be made in the event loop that serves it. `fatal` is set when this process must end, though the engine has
    not ended."""

    def __init__(self, engine: InferenceEngine, settings: ServerSettings, guard: CallGuard) -> None:
        self.fatal: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.create_task(engine.gone())
        self.engine = engine = LimitedEngine(engine, settings.call_timeout_s, settings.request_timeout_s)
        self.queue, self.served = RequestQueue(engine.max_in_flight), ServedWeights()
        self.pauser = Pauser(engine, self.queue, settings.call_timeout_s)
        self.generation = Generation(engine, self.queue, self.served)
        folder, probe_check = settings.model_folder, ProbeCheck(engine.info)
        work = pulse.WorkPulse(pulse.UPDATING, is_watched=not settings.is_attached)
        limit_s = settings.request_timeout_s
        adapters = Adapters(engine, self.pauser, self.served, folder, limit_s, probe_check, work)
        expected = ExpectedTensors(folder, engine.info.tensors)
        self._probe_check = probe_check
        self.updates = WeightUpdater(
            *(engine, self.generation, self.queue, self.pauser, self.served, expected, adapters, probe_check, work),
            run_id=settings.accepted_run,
        )
        self._settings, self._guard = settings, guard
        guard.on_new_attempt = self._on_new_attempt
        self._tasks: set[asyncio.Task[None]] = set()

    def application(self) -> web.Application:
        limits = BodyLimits(of_run=MAX_CALL_BYTES, of_others=max_client_bytes(self.engine.info.context_length))
        app = application(self._guard, *access_paths(self._settings.is_open), limits)
        model, limit_s = self._settings.model, self._settings.request_timeout_s
        access = ServerAccess(model, limit_s, self._guard, self.queue, self.pauser, self.served, self._statistics)
        app.add_routes([*control_routes(self, self), *self.engine.client_routes(access)])
        return app

    def load(self) -> Load:
        """What the engine was given."""
        asked, answered = self.generation.asked, self.generation.answered
        return Load(self.pauser.is_frozen, self.queue.running, asked, answered)

    def end(self, failure: Failure) -> None:
        """This process must end."""
        if not self.fatal.done():
            self.fatal.set_result(failure)

    async def until_ended(self) -> Failure:
        """Waits until the engine has ended, or this process must."""
        done, _ = await asyncio.wait([self._gone, self.fatal], return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    async def close(self) -> None:
        self._gone.cancel()
        await asyncio.gather(self._gone, return_exceptions=True)

    async def health(self, request: web.Request) -> web.Response:
        info, paused = self.engine.info, self.pauser.mode(CONTROLLER) is not None
        status = "broken" if self.served.fault is not None else "paused" if paused else "ok"
        server: dict[str, Any] = {"status": status, "run_id": self._settings.run_id, "model": self._settings.model}
        server |= {"version": self.served.reported_version, "attempt": self._guard.attempt}
        engine = {"engine": info.engine, "engine_version": info.version, "dtype": self._probe_check.dtype}
        return json_response({**server, **engine, "processes": info.processes, "devices": info.devices})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """One response line per group, as soon as it is finished."""
        self._refuse_where_broken()
        body = await read_json(request)
        groups = body_field(body, "groups", list)
        if not self.served.is_current and not body_field(body, ANY_WEIGHTS, bool, False):
            raise HttpError(503, "this server was given no weights by the run yet")
        attempt = int(request.headers[ATTEMPT_HEADER])
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        done: asyncio.Queue[asyncio.Task[dict[str, Any]]] = asyncio.Queue()
        tasks = [asyncio.create_task(self._line(group, attempt)) for group in groups]
        for task in tasks:
            task.add_done_callback(done.put_nowait)
        try:
            await _write(request, response, done, len(tasks))
        except EngineGone as fault:
            log.warning("answers are cut off: %s", fault)
            if request.transport is not None:
                request.transport.abort()  # a regular end would keep the client from asking another server
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return response

    async def _line(self, group: Any, attempt: int) -> dict[str, Any]:
        """If the engine failed at a group, its line has an error; if the engine is gone, there is no line."""
        try:
            return await self.generation.generate_group(group, attempt)
        except EngineGone as fault:
            await asyncio.wait([self._gone, self.fatal], timeout=EXIT_DETECTED_S, return_when=asyncio.FIRST_COMPLETED)
            if self._gone.done() or self.fatal.done():
                raise
            return {"id": str(group.get("id", "")), "error": str(fault)}

    async def update_weights(self, request: web.Request) -> web.Response:
        update = parse_update(await read_json(request))
        with self._http_errors():
            return json_response(await self.updates.update(update, self._same_attempt()))

    async def stage_weights(self, request: web.Request) -> web.Response:
        update = parse_update(await read_json(request))
        if update.transport == ADAPTER:
            raise HttpError(400, "transport: an adapter is loaded in one step; use update_weights")
        with self._http_errors():
            return json_response(await self.updates.stage(update, self._same_attempt()))

    async def commit_weights(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        version = body_field(body, "version", int)
        mode = parse_mode(body) if body.get("mode") else None  # else as it was staged
        with self._http_errors():
            return json_response(await self.updates.commit(version, mode, parse_probe(body), self._same_attempt()))

    async def pause(self, request: web.Request) -> web.Response:
        mode = parse_mode(await read_json(request))
        with self._http_errors():
            mode = self.pauser.resolve_mode(mode)
            running = await self.pauser.pause(CONTROLLER, mode)
        return json_response({"paused": True, "mode": mode, "running": running})

    async def resume(self, request: web.Request) -> web.Response:
        with self._http_errors():
            await self.pauser.resume(CONTROLLER)
        return json_response({"paused": False})

    async def abort(self, request: web.Request) -> web.Response:
        ids = parse_ids(await read_json(request))
        count = self.generation.end("aborted: on request", lambda in_flight: ids is None or in_flight.group.id in ids)
        return json_response({"aborted": count})

    async def fingerprint(self, request: web.Request) -> web.Response:
        with self._http_errors():
            return json_response(await self.updates.fingerprint())

    async def statistics(self, request: web.Request) -> web.Response:
        with self._http_errors():
            return json_response(await self._statistics())

    async def _statistics(self) -> dict[str, Any]:
        of_engine = await self.engine.statistics()
        counts = {**vars(self.generation.counts), "busy_s": self.queue.busy_s, "asked": self.generation.asked}
        merged = of_engine | counts if self.engine.usage is None else counts | of_engine
        waiting = of_engine.get("waiting", 0) + self.queue.waiting
        return merged | {"waiting": waiting, "version": self.served.reported_version}

    @contextlib.contextmanager
    def _http_errors(self) -> Iterator[None]:
        """Turns refusals of the engine into HTTP errors; a Failure also ends this process."""
        self._refuse_where_broken()
        try:
            yield
        except NotStaged as fault:
            raise HttpError(NOT_STAGED, str(fault)) from fault
        except ValueError as refusal:
            raise HttpError(409, str(refusal)) from refusal
        except (EngineGone, GroupBroken) as fault:
            raise HttpError(503, str(fault)) from fault
        except Failure as failure:
            self.end(failure)
            raise HttpError(503, str(failure)) from failure

    def _refuse_where_broken(self) -> None:
        if self.served.fault is not None:
            raise HttpError(503, f"this server is broken: {self.served.fault}")

    def _same_attempt(self) -> Callable[[], bool]:
        """Whether the run has not gone back to a checkpoint since now."""
        attempt = self._guard.attempt
        return lambda: self._guard.attempt == attempt

    def _on_new_attempt(self, attempt: int) -> None:
        self.updates.forget()
        self.generation.start_attempt(attempt)
        self._spawn(self._forget())

    async def _forget(self) -> None:
        try:
            await self.engine.forget()
            await self.pauser.resume(CONTROLLER)
        except (EngineGone, ValueError) as fault:
            log.warning("the engine keeps what it had of the attempt before: %s", fault)

    def _spawn(self, call: Any) -> None:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _write(
    request: web.Request,
    response: web.StreamResponse,
    done: "asyncio.Queue[asyncio.Task[dict[str, Any]]]",
    missing: int,
) -> None:
    """Writes all finished lines at once. Ends early if the client is gone."""
    while missing:
        try:
            finished = [await asyncio.wait_for(done.get(), DISCONNECT_CHECK_S)]
        except TimeoutError:
            if is_disconnected(request):
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
