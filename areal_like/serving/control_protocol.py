"""What the controller says to a server: in the bodies of calls to `/control/...`, alike for every engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import body_field
from areal_like.weights.errors import BadWeights
from areal_like.weights.index import Index, parse_index
from areal_like.weights.probe import Probe
from areal_like.weights.rendezvous import Rendezvous

DISK, COLLECTIVE, ADAPTER = "disk", "collective", "adapter"
MAX_CALL_BYTES = 256 << 20
"""Bytes of one call of the run to a server."""
TRANSPORTS = (DISK, COLLECTIVE, ADAPTER)
KEEP, WAIT, ABORT, AUTO = "keep", "wait", "abort", "auto"
MODES = (KEEP, WAIT, ABORT, AUTO)
"""What becomes of requests under way: they stay where they are; they end first; what there is of them is taken back;
or whichever of them the engine does best."""


@dataclass(frozen=True)
class UpdateRequest:
    """New weights. `folder` where they lie in files; `index` and `meeting` where the trainer sends them."""

    version: int
    transport: str
    folder: Path | None
    index: Index | None
    meeting: Rendezvous | None
    probe: Probe | None
    mode: str


def parse_update(said: Any) -> UpdateRequest:
    """Raises Refused, as all of these do."""
    transport = body_field(said, "transport", str, DISK)
    if transport not in TRANSPORTS:
        raise HttpError(400, f"transport: {transport!r} is not known; there are {', '.join(TRANSPORTS)}")
    folder, index = body_field(said, "folder", str, ""), body_field(said, "index", dict, {})
    meeting = body_field(said, "meeting", dict, {})
    if transport == COLLECTIVE and not (index and meeting):
        raise HttpError(400, "transport: collective wants an index and a meeting")
    if transport != COLLECTIVE and not folder:
        raise HttpError(400, f"folder: {transport} wants the folder of the weights")
    return UpdateRequest(
        version=body_field(said, "version", int),
        transport=transport,
        folder=Path(folder) if folder else None,
        index=_index(index) if index else None,
        meeting=_meeting(meeting) if transport == COLLECTIVE else None,
        probe=parse_probe(said),
        mode=parse_mode(said),
    )


def parse_probe(said: Any) -> Probe | None:
    probe = body_field(said, "probe", dict, {})
    try:
        return Probe(**probe) if probe else None
    except TypeError as misfit:
        raise HttpError(400, f"probe: {misfit}") from misfit


def parse_mode(said: Any) -> str:
    mode: str = body_field(said, "mode", str, AUTO)
    if mode not in MODES:
        raise HttpError(400, f"mode: {mode!r} is not known; there are {', '.join(MODES)}")
    return mode


def parse_ids(said: Any) -> set[str] | None:
    """Of the groups that are meant; None is all."""
    ids = said.get("ids") if isinstance(said, Mapping) else None
    if ids != "all" and not isinstance(ids, list):
        raise HttpError(400, 'ids: give a list of ids of groups, or "all"')
    return None if ids == "all" else set(map(str, ids))


def _index(said: Mapping[str, Any]) -> Index:
    try:
        return parse_index(said, "index")
    except BadWeights as misfit:
        raise HttpError(400, str(misfit)) from misfit


def _meeting(said: Mapping[str, Any]) -> Rendezvous:
    try:
        return Rendezvous(**said)
    except TypeError as misfit:
        raise HttpError(400, f"meeting: {misfit}") from misfit


class ServerHandlers(Protocol):
    async def health(self, request: web.Request) -> web.Response: ...
    async def generate(self, request: web.Request) -> web.StreamResponse: ...
    async def pause(self, request: web.Request) -> web.Response: ...
    async def resume(self, request: web.Request) -> web.Response: ...
    async def abort(self, request: web.Request) -> web.Response: ...
    async def fingerprint(self, request: web.Request) -> web.Response: ...
    async def statistics(self, request: web.Request) -> web.Response: ...


class UpdateHandlers(Protocol):
    async def update_weights(self, request: web.Request) -> web.Response: ...
    async def stage_weights(self, request: web.Request) -> web.Response: ...
    async def commit_weights(self, request: web.Request) -> web.Response: ...


def control_routes(server: ServerHandlers, updates: UpdateHandlers) -> list[web.RouteDef]:
    """Those by which a run speaks with each of its servers."""
    return [
        web.get("/health", server.health),
        web.post("/generate", server.generate),
        web.post("/control/update_weights", updates.update_weights),
        web.post("/control/stage_weights", updates.stage_weights),
        web.post("/control/commit_weights", updates.commit_weights),
        web.post("/control/pause", server.pause),
        web.post("/control/resume", server.resume),
        web.post("/control/abort", server.abort),
        web.get("/control/fingerprint", server.fingerprint),
        web.get("/control/statistics", server.statistics),
    ]
