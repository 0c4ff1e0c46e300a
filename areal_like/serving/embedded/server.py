"""The server's routes. What is open to all answers questions; what commands or trains wants the run's token."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from areal_like import __version__
from areal_like.process.errors import HttpError
from areal_like.process.http import application, body_field, json_response, read_json
from areal_like.process.identity import ATTEMPT_HEADER, CallGuard
from areal_like.process.request_checks import BodyLimits
from areal_like.serving.control_protocol import AUTO, KEEP, MAX_CALL_BYTES, control_routes, parse_ids, parse_mode
from areal_like.serving.embedded.async_engine import AsyncLLMEngine
from areal_like.serving.embedded.core.llm_engine import LLMEngine
from areal_like.serving.embedded.core.waiting_queue import QueuedGroup
from areal_like.serving.embedded.engine_thread import PauseCancelled
from areal_like.serving.embedded.openai_api.about import AboutRoutes
from areal_like.serving.embedded.openai_api.clients import OpenAIServing
from areal_like.serving.embedded.openai_api.completions import CompletionsRoute
from areal_like.serving.embedded.openai_api.generate_tokens import GenerateTokensRoute
from areal_like.serving.embedded.openai_api.tokenize import TokenizeRoutes
from areal_like.serving.embedded.weights.named_adapters import NamedAdapters
from areal_like.serving.embedded.weights.update import EmbeddedWeightUpdater
from areal_like.serving.embedded.weights.update_routes import UpdateRoutes
from areal_like.serving.open_paths import access_paths, max_client_bytes
from areal_like.serving.requests import BadRequest, FinishedGroup, GroupRequest, parse_group
from areal_like.weights.collective import gpu_ids
from areal_like.weights.versions import NO_VERSION


class EmbeddedServer:
    """Made within the event loop that serves it. `model` is the name under which clients of others ask for it;
    `of_any`: weights of every run are taken, and not only those of its own; `is_open`: everybody may generate."""

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
        self.streams = AsyncLLMEngine(engine)
        self._engine, self._guard = engine, guard
        self._driver = self.streams.driver
        self._updates = EmbeddedWeightUpdater(self.streams, None if of_any else run_id)
        self._adapters = NamedAdapters(self.streams, model)
        self._run_id, self._model, self._is_open = run_id, model, is_open
        self._outside = OpenAIServing(self.streams, model, seed)
        guard.on_new_attempt = self._on_new_attempt

    def application(self) -> web.Application:
        limits = BodyLimits(of_run=MAX_CALL_BYTES, of_others=max_client_bytes(self._engine.context_length))
        app = application(self._guard, *access_paths(self._is_open), limits)
        about, texts = AboutRoutes(self._outside), TokenizeRoutes(self._outside)
        app.add_routes(
            [
                *control_routes(self, UpdateRoutes(self._updates, self._guard)),
                web.get("/version", about.version),
                web.get("/metrics", about.metrics),
                web.get("/v1/models", about.models),
                web.post("/v1/completions", CompletionsRoute(self._outside).completions),
                web.post("/inference/v1/generate", GenerateTokensRoute(self._outside).generate),
                web.post("/tokenize", texts.tokenize),
                web.post("/detokenize", texts.detokenize),
                web.post("/control/load_adapter", self.load_adapter),
                web.post("/control/unload_adapter", self.unload_adapter),
            ]
        )
        return app

    async def health(self, request: web.Request) -> web.Response:
        facts = {"run_id": self._run_id, "model": self._model, "version": self._version}
        facts |= {"engine": "embedded", "engine_version": __version__, "attempt": self._guard.attempt}
        facts |= {"processes": 1, "devices": gpu_ids(self._engine.weights.device)}
        return json_response({"status": "paused" if self._driver.is_paused else "ok", **facts})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """One line for each group, as soon as it is finished."""
        if not self._updates.is_told:
            raise HttpError(503, "this server was given no weights by the run yet")
        said = await read_json(request)
        groups: list[GroupRequest] = []
        refused = []
        for one in body_field(said, "groups", list):
            try:
                groups.append(parse_group(one, self._engine.vocab_size, self._engine.context_length))
            except BadRequest as bad:
                refused.append(FinishedGroup(-1, str(one.get("id", "")) if isinstance(one, dict) else "", [], str(bad)))
        if any(group.sampling.stop for group in groups):
            with contextlib.suppress(BadRequest):  # each such group is told for itself
                await self._outside.load_tokenizer()
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        if refused:
            await response.write(_lines(refused))
        run = self.streams.run(request, groups, int(request.headers[ATTEMPT_HEADER]))
        with contextlib.suppress(ConnectionError):  # the client is gone, and its groups end with the stream
            async with contextlib.aclosing(run) as parts:
                async for finished in parts:
                    await response.write(_lines(finished))
        return response

    async def load_adapter(self, request: web.Request) -> web.Response:
        said = await read_json(request)
        name, folder = body_field(said, "name", str), Path(body_field(said, "folder", str))
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
            running = await asyncio.wrap_future(self._driver.pause(mode))
        except PauseCancelled as resumed:
            raise HttpError(409, str(resumed)) from resumed
        return json_response({"paused": True, "mode": mode, "running": running})

    async def resume(self, request: web.Request) -> web.Response:
        self._driver.resume()
        return json_response({"paused": False})

    async def abort(self, request: web.Request) -> web.Response:
        meant = parse_ids(await read_json(request))

        def is_meant(ticket: QueuedGroup) -> bool:
            return meant is None or ticket.group.id in meant

        return json_response(
            {"aborted": await self.streams.call(lambda: self._engine.abort("aborted: as told", is_meant))}
        )

    async def fingerprint(self, request: web.Request) -> web.Response:
        hashes = await self.streams.call(self._updates.all_hashes)
        return json_response({"version": self._version, "tensors": hashes, "uncovered": []})

    async def statistics(self, request: web.Request) -> web.Response:
        return json_response({**await self.streams.call(self._engine.statistics), "version": self._version})

    @property
    def _version(self) -> int:
        return self._engine.version if self._updates.is_told else NO_VERSION

    def _on_new_attempt(self, attempt: int) -> None:
        self._updates.forget()
        self.streams.abort_older(attempt)
        self._driver.resume()


def _lines(finished: list[FinishedGroup]) -> bytes:
    return b"".join(orjson.dumps(_line(one), option=orjson.OPT_APPEND_NEWLINE) for one in finished)


def _line(finished: FinishedGroup) -> dict[str, Any]:
    if finished.error is not None:
        return {"id": finished.id, "error": finished.error}
    return {"id": finished.id, "samples": finished.samples}
