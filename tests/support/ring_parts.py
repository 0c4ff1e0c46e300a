"""A controller and a server in this process for tests of episodes; they record all requests."""

import asyncio
import copy
import functools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import yaml
from aiohttp import web

from areal_like.config.describe.yaml_text import escape_references
from areal_like.config.load import load
from areal_like.data.checked_rows import row_hash
from areal_like.data.datasets import TASK_SPLIT
from areal_like.data.row_table import hash_text
from areal_like.data.tasks import Row
from areal_like.data.tasks.addition import Addition
from areal_like.process.frames import unpack
from areal_like.process.http import application, error_response, json_response, read_json, serve
from areal_like.process.identity import CallGuard, Identity
from areal_like.rollout.trajectory import unpack_group

SECRET = "a secret of the run"
WORKER = Identity("episodes", 0)
EOS = 1


class Server:
    """Gives every group the same answer, or that of `says`; functions in `fails` answer the next requests instead."""

    def __init__(self, token_ids: list[int] | None = None) -> None:
        self.token_ids = token_ids or [2, 6, 8, EOS]
        self.requests: list[list[dict[str, Any]]] = []
        self.fails: list[Callable[[web.Request], Any]] = []
        self.answer_for: Callable[[dict[str, Any]], Any] = self.samples
        self.disconnected = 0
        self.address = ""
        self.gate: asyncio.Event | None = None

    def samples(self, group: dict[str, Any]) -> dict[str, Any]:
        one = {
            "token_ids": self.token_ids,
            "logprobs": [-0.5] * len(self.token_ids),
            "versions": [3] * len(self.token_ids),
        }
        finish = "stop" if self.token_ids[-1] == EOS else "length"
        return {"id": group["id"], "samples": [one | {"finish": finish}] * group["n"]}

    async def generate(self, request: web.Request) -> web.StreamResponse:
        if self.fails:
            failure = self.fails.pop(0)(request)
            if isinstance(failure, web.Response):
                return failure
        groups = (await read_json(request))["groups"]
        self.requests.append(groups)
        response = web.StreamResponse()
        await response.prepare(request)
        for group in groups:
            while self.gate is not None and not self.gate.is_set():
                await asyncio.sleep(0.005)
                if request.transport is None or request.transport.is_closing():
                    self.disconnected += 1
                    return response
            answer = self.answer_for(group)
            if answer is None:
                close_connection(request)
                return response
            line = orjson.dumps(answer) + b"\n"
            await response.write(line[:20])
            await response.write(line[20:])
        return response

    async def health(self, request: web.Request) -> web.Response:
        return json_response({"status": "ok"})


def refuse(status: int, message: str = "not now") -> Callable[[web.Request], web.Response]:
    return lambda request: error_response(status, message)


def close_connection(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def open_server(server: Server | None = None) -> AsyncIterator[Server]:
    server = server or Server()
    app = application(CallGuard(SECRET), open_paths=("/health",))
    app.add_routes([web.post("/generate", server.generate), web.get("/health", server.health)])
    served = await serve(app, "127.0.0.1")
    server.address = served.address
    try:
        yield server
    finally:
        await served.close()


class Controller:
    """Hands out the given leases, then reports the end of the run."""

    def __init__(self, leases: list[dict[str, Any]]) -> None:
        self.leases = leases
        self.num_leases = len(leases)
        self.hello: dict[str, Any] = {}
        self.wants: list[int] = []
        self.results: dict[str, dict[str, Any]] = {}
        self.trajectories: dict[str, list[Any]] = {}
        self.num_finishes = 0
        self.counts: dict[str, int] = {}
        self.void: list[str] = []
        self.servers: list[str] = []
        self.address = ""
        self.guard = CallGuard(SECRET)

    async def register_worker(self, request: web.Request) -> web.Response:
        self.hello = await read_json(request)
        return json_response({"ok": True, "plan": {}})

    async def lease(self, request: web.Request) -> web.Response:
        want = (await read_json(request))["want"]
        self.wants.append(want)
        given, self.leases = self.leases[:want], self.leases[want:]
        if not given and len(self.results) >= self.num_leases:
            return json_response({"end": True})
        if not given:
            await asyncio.sleep(0.01)
        return json_response({"leases": given})

    async def finish(self, request: web.Request) -> web.Response:
        frame = unpack(await request.read())
        blobs = list(frame.blobs)
        self.num_finishes += bool(frame.header["results"])
        self.counts = frame.header["counts"]
        for result in frame.header["results"]:
            self.results[result["lease"]] = result
            if result["status"] == "done":
                self.trajectories[result["lease"]] = unpack_group(result["facts"], blobs.pop(0))
        assert not blobs
        void, self.void = self.void, []
        self.num_leases -= len(void)
        return json_response({"void": void})

    async def another(self, request: web.Request) -> web.Response:
        await read_json(request)
        next_server = self.servers.pop(0)
        return json_response({next_server: True} if next_server in ("wait", "void") else {"server": next_server})


@asynccontextmanager
async def open_controller(leases: list[dict[str, Any]]) -> AsyncIterator[Controller]:
    controller = Controller(leases)
    app = application(controller.guard)
    routes = {"hello": controller.register_worker, "lease": controller.lease, "finish": controller.finish}
    app.add_routes([web.post(f"/{name}", handler) for name, handler in routes.items()])
    app.add_routes([web.post("/another_server", controller.another)])
    served = await serve(app, "127.0.0.1")
    controller.address = served.address
    try:
        yield controller
    finally:
        await served.close()


@functools.cache
def addition_rows(split: str) -> Sequence[Row]:
    return Addition().rows(TASK_SPLIT[split])


def lease(number: int, server: str, **more: Any) -> dict[str, Any]:
    """A lease in the controller's format."""
    sampling = {"temperature": 0.5, "greedy": False, "max_new_tokens": 6, "max_tokens": 64, "stop_token_ids": []}
    known = {"id": f"{number}.1", "group": number, "purpose": "train", "split": "train", "row": number}
    if "row_hash" not in more:
        known["row_hash"] = hash_text(row_hash(addition_rows(more.get("split", "train"))[more.get("row", number)]))
    return known | {"server": server, "n": 2, "seed": 1000 + number, "sampling": sampling, "order": None} | more


def write_run(root: Path, *overrides: str, experiment: str = "grpo", **changes: Any) -> Path:
    """A run directory as the launcher leaves it, of a shipped experiment with these overrides; `task__name="x"` changes
    task.name afterwards."""
    values: dict[str, Any] = copy.deepcopy(_values(experiment, *overrides))
    names = {
        "rollout__num_episode_workers": 1,
        "reward__processes": 2,
        "trial_name": "t",
        "cluster__name_resolve__nfs_record_root": f"{root}/n",
    }
    for key, value in (names | changes).items():
        *above, name = key.split("__")
        functools.reduce(lambda section, part: section[part], above, values)[name] = value
    directory = root / "run"
    directory.mkdir()
    (directory / "config.yaml").write_text(yaml.safe_dump(escape_references(values)))
    facts = {"run_id": "1", "experiment": experiment, "folder": str(root), "cwd": str(root)}
    (directory / "run.json").write_text(json.dumps(facts))
    (directory / "attempt.json").write_text(json.dumps({"attempt": 1, "step": 0, "checkpoint": None}))
    return directory


@functools.cache
def _values(experiment: str, *overrides: str) -> dict[str, Any]:
    return load(f"{experiment}.yaml", ["rollout.backend=embedded", *overrides]).values
