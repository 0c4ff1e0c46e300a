"""The routes of every server: which of them require the run's token, and the bodies of `/control/...`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import body_field
from areal_like.weights.errors import BadWeights
from areal_like.weights.index import Index, parse_index
from areal_like.weights.probe import Probe, load_probe
from areal_like.weights.rendezvous import Rendezvous

HEALTH = "/health"
QUERY_PATHS = ("/v1/models", "/metrics", "/version")
TOKENIZE_PATHS = ("/tokenize", "/detokenize")
GENERATE_PATHS = ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate")
OPEN_PATHS = (HEALTH, *QUERY_PATHS)
"""Never require the token."""
CLIENT_PATHS = (*TOKENIZE_PATHS, *GENERATE_PATHS)
"""Use the model: they require the run's token, unless generation is open."""
TOKEN_BYTES, PROMPTS_AT_ONCE = 16, 8
MIB = 1 << 20
MAX_CLIENT_BYTES = 64 * MIB
MAX_CALL_BYTES = 256 * MIB
"""Maximum bytes of a call of the run to a server."""
DISK, COLLECTIVE, ADAPTER, LOADED = "disk", "collective", "adapter", "loaded"
TRANSPORTS = (DISK, COLLECTIVE, ADAPTER, LOADED)
"""`loaded`: the weights with which the server started, which must be those of the model in `folder`."""
ANY_WEIGHTS = "any_weights"
"""Field of a call to generate: whether weights that the run has not published are right as well."""
KEEP, WAIT, ABORT, AUTO = "keep", "wait", "abort", "auto"
MODES = (KEEP, WAIT, ABORT, AUTO)
"""What a pause does with running requests: freeze them; wait for their end; abort them and continue later from their
tokens; or `auto`, the best that the engine supports."""


@dataclass(frozen=True)
class UpdateRequest:
    """New weights: files in `folder` (of a model if they are `loaded`), or `index` and `rendezvous` if the trainer
    sends them."""

    version: int
    transport: str
    folder: Path | None
    index: Index | None
    rendezvous: Rendezvous | None
    probe: Probe | None
    mode: str


def access_paths(is_open: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths without a token, and those that require it. `is_open`: generation requires none."""
    return ((*OPEN_PATHS, *CLIENT_PATHS), ()) if is_open else (OPEN_PATHS, CLIENT_PATHS)


def max_client_bytes(context_length: int) -> int:
    """The largest body of a client: some prompts as long as the context, as text or as token ids."""
    return min(MAX_CLIENT_BYTES, MIB + PROMPTS_AT_ONCE * TOKEN_BYTES * context_length)


def parse_update(body: Any) -> UpdateRequest:
    """Raises HttpError, as all functions of this module that parse."""
    transport = body_field(body, "transport", str, DISK)
    if transport not in TRANSPORTS:
        raise HttpError(400, f"transport: {transport!r} is not known; there are {', '.join(TRANSPORTS)}")
    folder, index = body_field(body, "folder", str, ""), body_field(body, "index", dict, {})
    rendezvous = body_field(body, "meeting", dict, {})
    if transport == COLLECTIVE and not (index and rendezvous):
        raise HttpError(400, "transport: collective requires the fields index and meeting")
    if transport != COLLECTIVE and not folder:
        raise HttpError(400, f"folder: {transport} needs the folder of the weights")
    return UpdateRequest(
        version=body_field(body, "version", int),
        transport=transport,
        folder=Path(folder) if folder else None,
        index=_index(index) if index else None,
        rendezvous=_rendezvous(rendezvous) if transport == COLLECTIVE else None,
        probe=parse_probe(body),
        mode=parse_mode(body),
    )


def parse_probe(body: Any) -> Probe | None:
    probe = body_field(body, "probe", dict, {})
    try:
        return load_probe(probe) if probe else None
    except TypeError as fault:
        raise HttpError(400, f"probe: {fault}") from fault


def parse_mode(body: Any) -> str:
    mode: str = body_field(body, "mode", str, AUTO)
    if mode not in MODES:
        raise HttpError(400, f"mode: {mode!r} is not known; there are {', '.join(MODES)}")
    return mode


def parse_ids(body: Any) -> set[str] | None:
    """Ids of groups; None means all."""
    ids = body.get("ids") if isinstance(body, Mapping) else None
    if ids != "all" and not isinstance(ids, list):
        raise HttpError(400, 'ids: give a list of ids of groups, or "all"')
    return None if ids == "all" else set(map(str, ids))


def _index(value: Mapping[str, Any]) -> Index:
    try:
        return parse_index(value, "index")
    except BadWeights as fault:
        raise HttpError(400, str(fault)) from fault


def _rendezvous(value: Mapping[str, Any]) -> Rendezvous:
    try:
        return Rendezvous(**value)
    except TypeError as fault:
        raise HttpError(400, f"meeting: {fault}") from fault


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
    """The routes by which a run calls each of its servers."""
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
