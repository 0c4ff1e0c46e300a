"""HTTP server of the embedded engine. Queries are open to everybody; control calls need the run's token."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from areal_like import __version__
from areal_like.process.errors import DamagedWeights, HttpError
from areal_like.process.http import application, body_field, json_response, read_json
from areal_like.process.identity import ATTEMPT_HEADER, CallGuard
from areal_like.process.request_checks import BodyLimits
from areal_like.serving.control_protocol import (
    ADAPTER,
    AUTO,
    KEEP,
    MAX_CALL_BYTES,
    access_paths,
    control_routes,
    max_client_bytes,
    parse_ids,
    parse_mode,
    parse_probe,
    parse_update,
)
from areal_like.serving.engines.base import PauseCancelled
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.waiting_queue import QueuedGroup
from areal_like.serving.engines.embedded.engine_thread import AsyncLLMEngine
from areal_like.serving.engines.embedded.openai_api.completions import CompletionsRoute
from areal_like.serving.engines.embedded.openai_api.generate_tokens import GenerateTokensRoute
from areal_like.serving.engines.embedded.openai_api.openai_serving import OpenAIServing
from areal_like.serving.engines.embedded.openai_api.server_info import ServerInfoRoutes
from areal_like.serving.engines.embedded.openai_api.tokenize import TokenizeRoutes
from areal_like.serving.engines.embedded.weights.update import EmbeddedWeightUpdater, NamedAdapters
from areal_like.serving.requests import BadRequest, FinishedGroup, GroupRequest, parse_group
from areal_like.weights.collective import gpu_ids
from areal_like.weights.errors import GroupBroken
from areal_like.weights.versions import NO_VERSION


class EmbeddedServer:
    """Must be made in the event loop that serves it. `model` is its name for clients; `of_any`: accepts weights of any
    run; `is_open`: everybody may generate."""

    def __init__(
        self,
        engine: LLMEngine,
        guard: CallGuard,
        run_id: str,
        model: str,
        seed: int,
        of_any: bool = False,
        is_open: bool = False,
    ) -> None:
        self.async_engine = AsyncLLMEngine(engine)
        self._engine, self._guard = engine, guard
        self._thread = self.async_engine.thread
        self._updater = EmbeddedWeightUpdater(self.async_engine, None if of_any else run_id)
        self._adapters = NamedAdapters(self.async_engine, model)
        self._run_id, self._model, self._is_open = run_id, model, is_open
        self.openai = OpenAIServing(self.async_engine, model, seed)
        guard.on_new_attempt = self._on_new_attempt

    def application(self) -> web.Application:
        limits = BodyLimits(of_run=MAX_CALL_BYTES, of_others=max_client_bytes(self._engine.context_length))
        app = application(self._guard, *access_paths(self._is_open), limits)
        server_info, texts = ServerInfoRoutes(self.openai), TokenizeRoutes(self.openai)
        app.add_routes(
            [
                *control_routes(self, self),
                web.get("/version", server_info.version),
                web.get("/metrics", server_info.metrics),
                web.get("/v1/models", server_info.models),
                web.post("/v1/completions", CompletionsRoute(self.openai).completions),
                web.post("/inference/v1/generate", GenerateTokensRoute(self.openai).generate),
                web.post("/tokenize", texts.tokenize),
                web.post("/detokenize", texts.detokenize),
                web.post("/control/load_adapter", self.load_adapter),
                web.post("/control/unload_adapter", self.unload_adapter),
            ]
        )
        return app

    async def health(self, request: web.Request) -> web.Response:
        state = {"run_id": self._run_id, "model": self._model, "version": self._version}
        state |= {"engine": "embedded", "engine_version": __version__, "attempt": self._guard.attempt}
        state |= {"processes": 1, "devices": gpu_ids(self._engine.weights.device)}
        return json_response({"status": "paused" if self._thread.is_paused else "ok", **state})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """One line for each group, as soon as it is finished."""
        if not self._updater.has_run_weights:
            raise HttpError(503, "this server was given no weights by the run yet")
        body = await read_json(request)
        groups: list[GroupRequest] = []
        refused = []
        for one in body_field(body, "groups", list):
            try:
                groups.append(parse_group(one, self._engine.vocab_size, self._engine.context_length))
            except BadRequest as bad:
                refused.append(FinishedGroup(-1, str(one.get("id", "")) if isinstance(one, dict) else "", [], str(bad)))
        if any(group.sampling.stop for group in groups):
            with contextlib.suppress(BadRequest):  # reported for each group when it is submitted
                await self.openai.load_tokenizer()
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        if refused:
            await response.write(_lines(refused))
        stream = self.async_engine.generate(request, groups, int(request.headers[ATTEMPT_HEADER]))
        with contextlib.suppress(ConnectionError):  # the client has disconnected; closing the stream ends its groups
            async with contextlib.aclosing(stream) as parts:
                async for finished in parts:
                    await response.write(_lines(finished))
        return response

    async def update_weights(self, request: web.Request) -> web.Response:
        """409: refused; 410: not staged; 503: the transfer failed, or the loaded weights are damaged and this server
        ends. So for staging and committing."""
        update = parse_update(await read_json(request))
        with self._http_errors():
            return json_response(await self._updater.update(update, self._same_attempt()))

    async def stage_weights(self, request: web.Request) -> web.Response:
        update = parse_update(await read_json(request))
        if update.transport == ADAPTER:
            raise HttpError(400, "transport: an adapter is loaded in one step; use update_weights")
        with self._http_errors():
            await self._updater.stage(update, self._same_attempt())
        return json_response({"staged": update.version})

    async def commit_weights(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        version = body_field(body, "version", int)
        with self._http_errors():
            return json_response(await self._updater.commit(version, parse_probe(body), parse_mode(body)))

    async def load_adapter(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        name, folder = body_field(body, "name", str), Path(body_field(body, "folder", str))
        try:
            return json_response(await self._adapters.load(name, folder))
        except ValueError as bad:
            raise HttpError(409, str(bad)) from bad

    async def unload_adapter(self, request: web.Request) -> web.Response:
        name = body_field(await read_json(request), "name", str)
        try:
            return json_response(await self._adapters.unload(name))
        except BadRequest as bad:
            raise HttpError(404, str(bad)) from bad

    async def pause(self, request: web.Request) -> web.Response:
        mode = parse_mode(await read_json(request))
        mode = KEEP if mode == AUTO else mode
        try:
            running = await asyncio.wrap_future(self._thread.pause(mode))
        except PauseCancelled as cancelled:
            raise HttpError(409, str(cancelled)) from cancelled
        return json_response({"paused": True, "mode": mode, "running": running})

    async def resume(self, request: web.Request) -> web.Response:
        self._thread.resume()
        return json_response({"paused": False})

    async def abort(self, request: web.Request) -> web.Response:
        ids = parse_ids(await read_json(request))

        def matches(queued: QueuedGroup) -> bool:
            return ids is None or queued.group.id in ids

        aborted = await self.async_engine.call(lambda: self._engine.abort("aborted: by command", matches))
        return json_response({"aborted": aborted})

    async def fingerprint(self, request: web.Request) -> web.Response:
        hashes = await self.async_engine.call(self._updater.all_hashes)
        return json_response({"version": self._version, "tensors": hashes, "uncovered": []})

    async def statistics(self, request: web.Request) -> web.Response:
        statistics = await self.async_engine.call(self._engine.statistics)
        return json_response({**statistics, "version": self._version})

    @property
    def _version(self) -> int:
        return self._engine.version if self._updater.has_run_weights else NO_VERSION

    @contextlib.contextmanager
    def _http_errors(self) -> Iterator[None]:
        try:
            yield
        except DamagedWeights as damage:
            self.async_engine.fail(damage)
            raise HttpError(503, str(damage)) from damage
        except GroupBroken as broken:
            raise HttpError(503, str(broken)) from broken
        except ValueError as bad:
            raise HttpError(409, str(bad)) from bad

    def _same_attempt(self) -> Callable[[], bool]:
        """Whether the run has not gone back to a checkpoint since now."""
        attempt = self._guard.attempt
        return lambda: self._guard.attempt == attempt

    def _on_new_attempt(self, attempt: int) -> None:
        self._updater.forget()
        self.async_engine.abort_older(attempt)
        self._thread.resume()


def _lines(finished: list[FinishedGroup]) -> bytes:
    return b"".join(orjson.dumps(_line(one), option=orjson.OPT_APPEND_NEWLINE) for one in finished)


def _line(finished: FinishedGroup) -> dict[str, Any]:
    if finished.error is not None:
        return {"id": finished.id, "error": finished.error}
    return {"id": finished.id, "samples": finished.samples}
