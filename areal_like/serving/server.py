"""The HTTP server in front of an external engine: the routes that every server of a run has."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from areal_like.config.engines import engine_keys
from areal_like.models import model_folder
from areal_like.process.errors import Failure, HttpError
from areal_like.process.http import application, body_field, json_response, read_json
from areal_like.process.identity import ATTEMPT_HEADER, CallGuard
from areal_like.process.request_checks import BodyLimits
from areal_like.process.run import Run
from areal_like.serving.adapters import Adapters
from areal_like.serving.control_protocol import (
    MAX_CALL_BYTES,
    access_paths,
    control_routes,
    max_client_bytes,
    parse_ids,
    parse_mode,
    parse_probe,
    parse_update,
)
from areal_like.serving.engines.base import EngineGone, EngineInfo, InferenceEngine
from areal_like.serving.expected_tensors import ExpectedTensors
from areal_like.serving.generation import Generation
from areal_like.serving.pauser import Pauser
from areal_like.serving.public_proxy import PublicProxy
from areal_like.serving.request_queue import RequestQueue
from areal_like.serving.served_weights import ServedWeights
from areal_like.serving.updates import WeightUpdater
from areal_like.weights.errors import GroupBroken
from areal_like.weights.probe import TOLERANCES

DISCONNECT_CHECK_S = 0.25
"""Interval at which it is checked whether a waiting client is still connected."""
EXIT_DETECTED_S = 4.0
"""Time after a failed call within which the end of the engine's process is noticed."""
CONTROLLER = "controller"
"""Pause owner: the controller."""
DTYPE_ALIASES = {"half": "float16", "float": "float32", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
COARSEST = "bfloat16"

log = logging.getLogger(__name__)


class ServerParts(NamedTuple):
    queue: RequestQueue
    pauser: Pauser
    served: ServedWeights
    generation: Generation
    updates: WeightUpdater


def build_parts(run: Run, kind: str, engine: InferenceEngine, info: EngineInfo) -> ServerParts:
    queue, served = RequestQueue(), ServedWeights()
    pauser = Pauser(engine, queue)
    generation = Generation(engine, info, queue, served, engine_keys(kind).length_key)
    folder = model_folder(run.config.actor.path, run.cwd)
    dtype = engine_dtype(getattr(run.config, kind).dtype)
    adapters = Adapters(engine, pauser, served, folder, dtype, run.config.rollout.request_timeout)
    run_id = None if run.serves else run.run_id
    updates = WeightUpdater(engine, generation, queue, pauser, served, ExpectedTensors(folder), adapters, run_id, dtype)
    return ServerParts(queue, pauser, served, generation, updates)


def engine_dtype(value: Any) -> str:
    """The precision of an engine; the coarsest if the engine chooses it itself."""
    name = DTYPE_ALIASES.get(str(value), str(value))
    return name if name in TOLERANCES else COARSEST


class ExternalEngineServer:
    """`engine_exit` is done when the engine ends; `fatal` is set when this process must end for another reason. `model`
    is the name that public clients use; `is_open`: generation needs no token."""

    def __init__(
        self,
        engine: InferenceEngine,
        info: EngineInfo,
        engine_exit: "asyncio.Future[Failure]",
        parts: ServerParts,
        proxy: PublicProxy,
        guard: CallGuard,
        run_id: str,
        model: str,
        is_open: bool = False,
    ) -> None:
        self.fatal: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self._engine, self._info, self._engine_exit = engine, info, engine_exit
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
        server = {"status": status, "run_id": self._run_id, "model": self._model}
        version = {"version": self._served.reported_version}
        return json_response({**server, **version, **engine, "processes": self._info.processes})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """One response line per group, as soon as it is finished."""
        self._refuse_where_broken()
        if not self._served.is_current:
            raise HttpError(503, "this server has no weights of the run yet")
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
            return await self._generation.generate_group(group, attempt)
        except EngineGone as fault:
            await asyncio.wait(
                [self._engine_exit, self.fatal], timeout=EXIT_DETECTED_S, return_when=asyncio.FIRST_COMPLETED
            )
            if self._engine_exit.done() or self.fatal.done():
                raise
            return {"id": str(group.get("id", "")), "error": str(fault)}

    async def update_weights(self, request: web.Request) -> web.Response:
        update = parse_update(await read_json(request))
        attempt = self._guard.attempt
        with self._http_errors():
            return json_response(await self._updates.update(update, lambda: self._guard.attempt == attempt))

    async def stage_weights(self, request: web.Request) -> web.Response:
        with self._http_errors():
            return json_response(await self._updates.stage(parse_update(await read_json(request))))

    async def commit_weights(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        attempt = self._guard.attempt
        version = body_field(body, "version", int)
        mode = parse_mode(body) if body.get("mode") else None  # else as it was staged
        with self._http_errors():
            return json_response(
                await self._updates.commit(version, mode, parse_probe(body), lambda: self._guard.attempt == attempt)
            )

    async def pause(self, request: web.Request) -> web.Response:
        mode = parse_mode(await read_json(request))
        with self._http_errors():
            mode = self._pauser.resolve_mode(mode)
            await self._pauser.pause(CONTROLLER, mode)
        return json_response({"paused": True, "mode": mode, "running": self._queue.running})

    async def resume(self, request: web.Request) -> web.Response:
        with self._http_errors():
            await self._pauser.resume(CONTROLLER)
        return json_response({"paused": False})

    async def abort(self, request: web.Request) -> web.Response:
        ids = parse_ids(await read_json(request))
        count = self._generation.end("aborted: on request", lambda in_flight: ids is None or in_flight.group.id in ids)
        return json_response({"aborted": count})

    async def fingerprint(self, request: web.Request) -> web.Response:
        with self._http_errors():
            return json_response(await self._updates.fingerprint())

    async def statistics(self, request: web.Request) -> web.Response:
        with self._http_errors():
            statistics = await self._engine.statistics()
        counts = {**vars(self._generation.counts), "busy_s": self._queue.busy_s}
        waiting = statistics.get("waiting", 0) + self._queue.waiting
        return json_response({**statistics, **counts, "waiting": waiting, "version": self._served.reported_version})

    @contextlib.contextmanager
    def _http_errors(self) -> Iterator[None]:
        """Turns refusals of the engine into HTTP errors; a Failure also ends this process."""
        self._refuse_where_broken()
        try:
            yield
        except ValueError as refusal:
            raise HttpError(409, str(refusal)) from refusal
        except (EngineGone, GroupBroken) as fault:
            raise HttpError(503, str(fault)) from fault
        except Failure as failure:
            if not self.fatal.done():
                self.fatal.set_result(failure)
            raise HttpError(503, str(failure)) from failure

    def _refuse_where_broken(self) -> None:
        if self._served.fault is not None:
            raise HttpError(503, f"this server is broken: {self._served.fault}")

    def _on_new_attempt(self, attempt: int) -> None:
        self._updates.forget()
        reason = f"aborted: the group is of an earlier attempt; the run is at attempt {attempt}"
        self._generation.end(reason, lambda in_flight: in_flight.attempt < attempt)
        task = asyncio.create_task(self._pauser.resume(CONTROLLER))
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
