"""The server's routes. What is open to all answers questions; what commands or trains wants the run's token."""

import contextlib
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from areal_like.process.errors import Refused
from areal_like.process.http import answer, application, read_json
from areal_like.process.identity import ATTEMPT_HEADER, Guard
from areal_like.serving.embedded.engine import NEVER_TOLD, Engine
from areal_like.serving.embedded.openai import Completions
from areal_like.serving.embedded.queue import Ticket
from areal_like.serving.embedded.request import BadRequest, Finished, parse_group
from areal_like.serving.embedded.streams import Streams
from areal_like.serving.embedded.update import Updates
from areal_like.weights.probe import Probe

OPEN_PATHS = ("/health", "/v1/")


class EmbeddedServer:
    """Made within the event loop that serves it. `model` is the name under which clients of others ask for it."""

    def __init__(self, engine: Engine, guard: Guard, run_id: str, model: str, folder: Path, seed: int) -> None:
        self.streams = Streams(engine)
        self._engine, self._guard = engine, guard
        self._driver = self.streams.driver
        self._updates = Updates(self.streams, run_id)
        self._run_id, self._model = run_id, model
        self._completions = Completions(self.streams, model, folder, seed)
        guard.on_new_attempt = self._on_new_attempt

    def application(self) -> web.Application:
        app = application(self._guard, OPEN_PATHS)
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/v1/models", self._completions.models),
                web.post("/v1/completions", self._completions.completions),
                web.post("/generate", self.generate),
                web.post("/control/update_weights", self.update_weights),
                web.post("/control/pause", self.pause),
                web.post("/control/resume", self.resume),
                web.post("/control/abort", self.abort),
                web.get("/control/fingerprint", self.fingerprint),
                web.get("/control/statistics", self.statistics),
            ]
        )
        return app

    async def health(self, request: web.Request) -> web.Response:
        facts = {"run_id": self._run_id, "model": self._model, "version": self._version}
        return answer({"status": "paused" if self._driver.is_paused else "ok", **facts})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """One line for each group, as soon as it is finished."""
        if not self._updates.is_told:
            raise Refused(503, "this server was given no weights by the run yet")
        said = await read_json(request)
        groups, refused = [], []
        for one in _field(said, "groups", list):
            try:
                groups.append(parse_group(one, self._engine.vocab_size))
            except BadRequest as bad:
                refused.append(Finished(-1, str(one.get("id", "")) if isinstance(one, dict) else "", [], str(bad)))
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

    async def update_weights(self, request: web.Request) -> web.Response:
        said = await read_json(request)
        version, folder = _field(said, "version", int), Path(_field(said, "folder", str))
        probe = Probe(**said["probe"]) if said.get("probe") else None
        attempt = self._guard.attempt
        try:
            return answer(await self._updates.update(version, folder, probe, lambda: self._guard.attempt == attempt))
        except ValueError as bad:
            raise Refused(409, str(bad)) from bad

    async def pause(self, request: web.Request) -> web.Response:
        self._driver.pause(True)
        return answer({"paused": True})

    async def resume(self, request: web.Request) -> web.Response:
        self._driver.pause(False)
        return answer({"paused": False})

    async def abort(self, request: web.Request) -> web.Response:
        ids = (await read_json(request) or {}).get("ids")
        if ids != "all" and not isinstance(ids, list):
            raise Refused(400, 'ids: give a list of ids of groups, or "all"')
        meant = None if ids == "all" else set(ids)

        def is_meant(ticket: Ticket) -> bool:
            return meant is None or ticket.group.id in meant

        return answer({"aborted": await self.streams.call(lambda: self._engine.abort("aborted: as told", is_meant))})

    async def fingerprint(self, request: web.Request) -> web.Response:
        hashes = await self.streams.call(self._updates.hashes)
        return answer({"version": self._version, "tensors": hashes})

    async def statistics(self, request: web.Request) -> web.Response:
        return answer({**await self.streams.call(self._engine.statistics), "version": self._version})

    @property
    def _version(self) -> int:
        return self._engine.version if self._updates.is_told else NEVER_TOLD

    def _on_new_attempt(self, attempt: int) -> None:
        self._updates.forget()
        self.streams.abort_older(attempt)
        self._driver.pause(False)


def _field(said: Any, name: str, kind: type) -> Any:
    value = said.get(name) if isinstance(said, dict) else None
    if not isinstance(value, kind):
        raise Refused(400, f"{name}: missing from the body, or not of the right type")
    return value


def _lines(finished: list[Finished]) -> bytes:
    return b"".join(orjson.dumps(_line(one), option=orjson.OPT_APPEND_NEWLINE) for one in finished)


def _line(finished: Finished) -> dict[str, Any]:
    if finished.error is not None:
        return {"id": finished.id, "error": finished.error}
    return {"id": finished.id, "samples": finished.samples}
