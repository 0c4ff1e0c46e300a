"""The commands by which a server is given new weights. 409: they are refused; 410: they are not here; 503: they did not
come through."""

from collections.abc import Callable

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import body_field, json_response, read_json
from areal_like.process.identity import CallGuard
from areal_like.serving.control_protocol import ADAPTER, parse_mode, parse_probe, parse_update
from areal_like.serving.embedded.weights.update import EmbeddedWeightUpdater
from areal_like.weights.errors import GroupBroken


class UpdateRoutes:
    def __init__(self, updates: EmbeddedWeightUpdater, guard: CallGuard) -> None:
        self._updates, self._guard = updates, guard

    async def update_weights(self, request: web.Request) -> web.Response:
        order = parse_update(await read_json(request))
        with _Answers():
            return json_response(await self._updates.update(order, self._is_wanted()))

    async def stage_weights(self, request: web.Request) -> web.Response:
        order = parse_update(await read_json(request))
        if order.transport == ADAPTER:
            raise HttpError(400, "transport: an adapter comes by update_weights, in one go")
        with _Answers():
            await self._updates.stage(order, self._is_wanted())
        return json_response({"staged": order.version})

    async def commit_weights(self, request: web.Request) -> web.Response:
        said = await read_json(request)
        version = body_field(said, "version", int)
        with _Answers():
            return json_response(await self._updates.commit(version, parse_probe(said), parse_mode(said)))

    def _is_wanted(self) -> Callable[[], bool]:
        """As long as the run does not go back to a checkpoint."""
        attempt = self._guard.attempt
        return lambda: self._guard.attempt == attempt


class _Answers:
    """Faults as what is answered."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, GroupBroken):
            raise HttpError(503, str(fault)) from fault
        if isinstance(fault, ValueError):
            raise HttpError(409, str(fault)) from fault
