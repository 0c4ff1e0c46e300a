"""A controller with fake servers, worker and trainer, over real HTTP in one process and without models."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from areal_like.discovery import MemoryEntries, memory_name_store
from areal_like.process.errors import HttpError
from areal_like.process.frames import Frame, pack
from areal_like.process.http import HttpClient, HttpServer, application, json_response, read_json, serve
from areal_like.process.identity import CallGuard, Identity
from areal_like.process.run import Run
from areal_like.rollout.controller.controller import Controller
from areal_like.rollout.controller.routes import Routes
from areal_like.weights.index import Index, write_index
from areal_like.weights.probe import Probe
from tests.support.rollout_world import facts, grpo

SECRET = "s3cret"
PROBE = Probe([1, 2, 3], [-0.5, -1.5])
SMALL = (
    "train_dataset.batch_size=4",
    "gconfig.n_samples=2",
    "total_train_steps=3",
    "rollout.max_head_offpolicyness=1",
    "evaluator.freq_steps=null",
    "stats_logger.tensorboard.path=null",  # whose samples it would read, and here they are made up
)


def make_run(folder: Path, *overrides: str, step: int = 0, checkpoint: Path | None = None, attempt: int = 1) -> Run:
    folder.mkdir(exist_ok=True)
    record = {"attempt": attempt, "step": step, "checkpoint": None if checkpoint is None else str(checkpoint)}
    (folder / "attempt.json").write_text(json.dumps(record))
    return Run(folder, grpo(*SMALL, *overrides), "grpo", "run1", folder, folder)


class FakeServer:
    """Accepts weights and commands; `log` has them in order. It does not generate."""

    def __init__(self, index: int, incarnation: int, store: MemoryEntries) -> None:
        self.name, self.version = f"server/{index}", -1
        self.log: list[str] = []
        self.times: list[float] = []
        """The time of each line of the log."""
        self.probe, self.refusal, self.hold = list(PROBE.logprobs), "", asyncio.Event()
        self.facts: dict[str, Any] = {}
        """What it reports of itself with an update."""
        self.noise: list[Any] = []
        """The noise of the probe that each update gave it."""
        self.hold.set()
        self.updating = 0
        self._incarnation, self._names = incarnation, memory_name_store("", self.name, store)
        self._served: HttpServer | None = None

    async def start(self) -> None:
        app = application(CallGuard(SECRET, 0))
        app.add_routes(self.routes())
        self._served = await serve(app, "127.0.0.1")
        self.address = self._served.address
        entry = {"address": self.address, "attempt": 1, "incarnation": self._incarnation, "pid": 1}
        self._names.add(self.name, json.dumps(entry))

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/control/update_weights", self._update),
            web.get("/health", self._health),
            *(web.post(f"/control/{what}", self._command) for what in ("pause", "resume", "abort")),
        ]

    async def stop(self) -> None:
        self._names.close()
        if self._served is not None:
            await self._served.close()

    async def _update(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        assert self.updating == 0, "two updates at once"
        self.updating += 1
        await self.hold.wait()
        self.updating -= 1
        self.times.append(time.monotonic())
        self.log.append(f"update {body['version']}")
        if self.refusal:
            raise HttpError(409, self.refusal)
        self.version = body["version"]
        self.noise.append((body["probe"] or {}).get("noise"))
        generated = {"tokens": 10, "busy_s": 0.001}
        done = {"version": self.version, "stall_s": 0.01, "load_s": 0.02, "tensors": 1, "generated": generated}
        return json_response({**done, **self.facts, "probe_logprobs": self.probe})

    async def _health(self, request: web.Request) -> web.Response:
        name, _, version = self.facts.get("engine", "embedded 1").partition(" ")
        engine = {**self.facts, "engine": name, "engine_version": version}
        return json_response({**engine, "version": self.version})

    async def _command(self, request: web.Request) -> web.Response:
        self.times.append(time.monotonic())
        self.log.append(request.path.rpartition("/")[2])
        return json_response({})


class World:
    """The controller and its environment. `caller(name)` is a client with that process name."""

    def __init__(self, run: Run, store: MemoryEntries) -> None:
        self.run, self.store = run, store
        self.start = run.start_point()
        self.servers: list[FakeServer] = []
        self._stack = contextlib.AsyncExitStack()
        self._callers: dict[tuple[str, int], HttpClient] = {}
        self.calls: Counter[str] = Counter()
        self.held: dict[str, dict[str, None]] = {}
        """The calls for leases, and the leases in work, by worker."""
        self.over = False

    async def begin(self) -> None:
        me = Identity("rollout", 0, self.start.attempt, 1)
        names = self._stack.enter_context(memory_name_store("", me.name, self.store))
        caller = await self._stack.enter_async_context(HttpClient(me, SECRET))
        self.controller = Controller(self.run, me, names, caller)
        guard = CallGuard(SECRET, me.attempt)
        guard.on_new_attempt = self.controller.superseded
        app = application(guard)
        app.add_routes(Routes(self.controller).table())
        self._served = await serve(app, "127.0.0.1")
        self.life = asyncio.create_task(self.controller.run_until_over())

    async def end(self) -> None:
        self.life.cancel()
        await asyncio.gather(self.life, return_exceptions=True)
        await self.controller.close()
        for server in self.servers:
            await server.stop()
        await self._stack.aclose()
        await self._served.close()

    async def add_server(self, index: int = 0, incarnation: int = 1) -> FakeServer:
        server = FakeServer(index, incarnation, self.store)
        await server.start()
        self.servers.append(server)
        self.controller.servers.check_now()
        return server

    async def remove_server(self, server: FakeServer) -> None:
        self.servers.remove(server)
        await server.stop()
        self.controller.servers.check_now()

    async def caller(self, name: str, incarnation: int = 1) -> HttpClient:
        if (name, incarnation) not in self._callers:
            role, _, index = name.partition("/")
            me = Identity(role, int(index), self.start.attempt, incarnation)
            self._callers[name, incarnation] = await self._stack.enter_async_context(HttpClient(me, SECRET))
        return self._callers[name, incarnation]

    async def json(
        self,
        path: str,
        body: Any = None,
        who: str = "trainer/0",
        method: str = "POST",
        life: int = 1,
        timeout_s: float = 60.0,
    ) -> Any:
        caller = await self.caller(who, life)
        return await caller.json(method, self._served.address, path, body, timeout_s)

    async def frame(self, path: str, body: Any, who: str = "trainer/0") -> Frame:
        return await (await self.caller(who)).frame("POST", self._served.address, path, body)

    async def until(self, condition: Callable[[], Any], limit_s: float = 60.0) -> Any:
        async with asyncio.timeout(limit_s):
            while not (result := condition()):
                await asyncio.sleep(0.005)
        return result

    # What workers do.

    async def hello(
        self, who: str = "episodes/0", incarnation: int = 1, rows: int = 20, valid: int = 0, digest: str = "d1"
    ) -> Any:
        train = {"rows": rows, "digest": digest, "probe_tokens": PROBE.token_ids}
        held_out = {"rows": valid, "digest": "d2"} if valid else None
        body = {"worker": who, "incarnation": incarnation, "datasets": {"train": train, "valid": held_out}}
        if incarnation > 1:
            self.calls.pop(who, None)
            self.held.pop(who, None)
        return await self.json("/hello", body, who, life=incarnation)

    async def lease(self, want: int = 100, who: str = "episodes/0") -> list[dict[str, Any]]:
        """Inspects rows until it gets leases, or there are none."""
        leases: list[dict[str, Any]] = []
        inspected: dict[str, Any] = {}
        while True:
            body = self.wanted(want - len(leases), who, inspected=inspected)
            reply = await self.json("/lease", body, who)
            self.over = self.over or reply.get("end", False)
            self.held[who] |= dict.fromkeys(lease["id"] for lease in reply["leases"])
            leases += reply["leases"]
            rows = reply.get("inspect", {})
            inspected = {part: [[row, f"{row:016x}", False] for row in rows[part]] for part in rows}
            if not inspected:
                return leases

    def wanted(self, want: int, who: str = "episodes/0", **more: Any) -> dict[str, Any]:
        """The next call for leases."""
        self.calls[who] += 1
        held = list(self.held.setdefault(who, {}))
        return {"worker": who, "want": want, "call": self.calls[who], "held": held, **more}

    async def finish(self, leases: list[dict[str, Any]], who: str = "episodes/0", **more: Any) -> Any:
        results, blobs = [], []
        for lease in leases:
            version = next(server.version for server in self.servers if server.address == lease["server"])
            rewards = [float(index) for index in range(lease["n"])]
            result = {"lease": lease["id"], "status": "done", "facts": facts(version, rewards), "timings": {}, **more}
            results.append(result)
            if result["status"] == "done":
                blobs.append(f"group {lease['group']}".encode())
        caller = await self.caller(who)
        body = pack({"worker": who, "results": results}, blobs)
        reply = await caller.json("POST", self._served.address, "/finish", body)
        for lease in leases:
            self.held.get(who, {}).pop(lease["id"], None)
        return reply

    async def work(self, who: str = "episodes/0", want: int = 3) -> None:
        """Runs until the run is over."""
        while not self.over:
            if leases := await self.lease(want, who):
                await self.finish(leases, who)

    # What the trainer does.

    def publication(self, version: int, probe: Probe | None = PROBE) -> Path:
        folder = self.run.directory / "published" / f"v{version:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        write_index(folder, Index(version, "run1", [], probe))
        return folder

    async def publish(self, version: int, probe: Probe | None = PROBE) -> Any:
        folder = self.publication(version, probe)
        return await self.json("/publish", {"version": version, "folder": str(folder), "bytes": 0})

    async def batch(self, step: int, rank: int = 0, world: int = 1) -> Frame:
        while True:
            frame = await self.frame("/batch", {"step": step, "rank": rank, "world": world}, f"trainer/{rank}")
            if "wait" not in frame.header:
                return frame

    async def train(self, save: Callable[[int], Awaitable[None]] | None = None, until: int | None = None) -> list[Any]:
        """Trains to the end of the run, or until step `until`. Returns the groups of each step."""
        await self.publish(self.start.step)
        steps: list[Any] = []
        step = self.start.step
        while step != until:
            frame = await self.batch(step)
            if "stop" in frame.header:
                await self.json("/finished", {"step": step, "early": False})
                return steps
            groups = list(dict.fromkeys(sample["group"] for sample in frame.header["samples"]))
            assert [bytes(blob) for blob in frame.blobs] == [f"group {group}".encode() for group in groups]
            steps.append(groups)
            step += 1
            await self.publish(step)
            await self.json("/done", {"step": step - 1})
            if save is not None:
                await save(step)
        return steps

    def metrics(self) -> list[dict[str, Any]]:
        path = self.run.metrics / "rollout-0.jsonl"
        return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


@contextlib.asynccontextmanager
async def world_of(run: Run, num_servers: int = 1) -> AsyncIterator[World]:
    world = World(run, MemoryEntries())
    await world.begin()
    try:
        for index in range(num_servers):
            await world.add_server(index)
        yield world
    finally:
        await world.end()
