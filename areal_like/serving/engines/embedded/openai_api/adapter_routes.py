"""`/control/load_adapter` and `/control/unload_adapter`: adapters that completions can name as their model."""

from pathlib import Path

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import body_field, json_response, read_json
from areal_like.serving.engines.embedded.weights.named_adapters import NamedAdapters
from areal_like.serving.requests import BadRequest


class AdapterRoutes:
    def __init__(self, adapters: NamedAdapters) -> None:
        self._adapters = adapters

    async def load(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        name, folder = body_field(body, "name", str), Path(body_field(body, "folder", str))
        try:
            return json_response(await self._adapters.load(name, folder))
        except ValueError as bad:
            raise HttpError(409, str(bad)) from bad

    async def unload(self, request: web.Request) -> web.Response:
        name = body_field(await read_json(request), "name", str)
        try:
            return json_response(await self._adapters.unload(name))
        except BadRequest as bad:
            raise HttpError(404, str(bad)) from bad
