"""Routes of the controller. Calls that wait are long polls: they return after two seconds at most, and are repeated."""

from collections.abc import Sequence

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.frames import pack
from areal_like.process.http import binary_response, body_field, body_int, json_response, read_frame, read_json
from areal_like.process.identity import PROCESS_HEADER
from areal_like.rollout.batches import RolloutBatch
from areal_like.rollout.controller import request_bodies
from areal_like.rollout.controller.controller import PROBE_NOISE, PROBE_TOKENS, Controller
from areal_like.rollout.groups import Lease
from areal_like.rollout.lease_limit import LIMITS
from areal_like.rollout.loop import RolloutLoop
from areal_like.rollout.snapshot import snapshot

LONG_POLL_S = 2.0


class Routes:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def table(self) -> Sequence[web.RouteDef]:
        return [
            web.post("/hello", self.hello),
            web.post("/lease", self.lease),
            web.post("/finish", self.finish),
            web.post("/another_server", self.another_server),
            web.get("/facts", self.facts),
            web.post("/publish", self.publish),
            web.post("/send", self.send),
            web.post("/withdraw", self.withdraw),
            web.post("/sending", self.sending),
            web.post("/batch", self.batch),
            web.post("/done", self.done),
            web.post("/state", self.state),
            web.post("/finished", self.finished),
        ]

    @property
    def _loop(self) -> RolloutLoop:
        loop = self._controller.loop
        if loop is None:
            raise HttpError(425, "no worker has reported its data yet")
        return loop

    # Workers.

    async def hello(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        self._controller.hello(
            request_bodies.name(body, "worker"), body_int(body, "incarnation"), request_bodies.datasets(body)
        )
        settings = self._controller.settings
        plan = {"synchronous": settings.synchronous, "max_concurrent": settings.max_concurrent}
        return json_response({"ok": True, "plan": plan})

    async def lease(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        controller, loop, worker = self._controller, self._loop, request_bodies.name(body, "worker")
        want, inspected = body_int(body, "want"), request_bodies.inspected(body, loop.inspection.datasets)
        call, held = request_bodies.held(body)
        has_lost = loop.held(worker, call, held)
        if inspected:
            loop.inspected(inspected)
        if inspected or has_lost:
            controller.loop_changed()

        def ready_work() -> tuple[list[Lease], dict[str, list[int]]] | None:
            is_cut = request.transport is None or request.transport.is_closing()
            if controller.over or is_cut or not loop.leases.is_last_call(worker, call):
                return [], {}
            work = loop.lease(worker, want), loop.inspection.take(worker)
            return work if any(work) or not want else None

        leases, rows = await controller.changed.wait_for(ready_work, LONG_POLL_S) or ([], {})
        if controller.over:
            controller.ended_workers.add(worker)
            controller.changed.notify()
            return json_response({"leases": [], "end": True})
        if leases:
            controller.loop_changed()
        return json_response({"leases": [lease.wire(loop.settings) for lease in leases], "inspect": rows})

    async def finish(self, request: web.Request) -> web.Response:
        worker, counts, results = request_bodies.finished(await read_frame(request))
        loop = self._loop
        loop.counts.add_rewards(worker, counts)
        loop.finish(worker, results)
        self._controller.loop_changed()
        return json_response({"void": loop.leases.take_cancelled(worker)})

    async def another_server(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        controller, loop, worker = self._controller, self._loop, request.headers[PROCESS_HEADER]
        lease, failed_address = body_field(body, "lease", str), body_field(body, "gone", str)
        controller.servers.check_now()
        address = await controller.changed.wait_for(
            lambda: loop.another_server(worker, lease, failed_address), LONG_POLL_S
        )
        controller.loop_changed()
        if address is None and controller.has_server(failed_address):
            address = failed_address
        if address is None:
            return json_response({"wait": True})
        return json_response({"server": address} if address else {"void": True})

    # Trainer.

    async def facts(self, request: web.Request) -> web.Response:
        controller = self._controller
        loop = controller.loop
        if loop is None:
            return json_response({"ready": False})
        return json_response(
            {
                "ready": True,
                "total_steps": loop.length.total_steps,
                "steps_per_epoch": loop.length.steps_per_epoch,
                "train_rows": loop.length.rows,
                "valid_rows": controller.valid_rows,
                "start_step": controller.start.step,
                "probe_tokens": controller.probe_tokens,
            }
        )

    async def publish(self, request: web.Request) -> web.Response:
        awaited = await self._controller.publish(request_bodies.publication(await read_json(request)))
        return json_response({"awaited": awaited})

    async def send(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        version, kept = body_int(body, "version", -1), body_field(body, "kept", str, "")
        reply = await self._controller.broadcast.next_round(version, kept, LONG_POLL_S)
        loop = self._controller.loop
        return json_response({**reply, "evaluating": 0 if loop is None else loop.evaluations.rows_left})

    async def withdraw(self, request: web.Request) -> web.Response:
        self._controller.broadcast.withdraw(body_int(await read_json(request), "version"))
        return json_response({"ok": True})

    async def sending(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        return json_response(await self._controller.broadcast.end_of_round(body_field(body, "group", str), LONG_POLL_S))

    async def batch(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        (rank, world), step = request_bodies.rank_and_world(body), body_int(body, "step")
        loop = self._loop

        def formed() -> RolloutBatch | str | None:
            return loop.batch(step, rank, world)

        batch: RolloutBatch | str | None = await self._controller.changed.wait_for(formed, LONG_POLL_S)
        self._controller.loop_changed()
        if batch is None:
            limit = loop.settings.lease_limit_s, LIMITS
            return binary_response(pack({"wait": True, "results": loop.leases.num_closed, "limit": limit}))
        if isinstance(batch, str):
            return binary_response(pack({"stop": batch}))
        return binary_response(pack(batch.header(rank), batch.blobs(rank)))

    async def done(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        step = body_int(body, "step")
        if (batch := self._loop.done(step)) is not None:
            self._controller.rollouts.add(batch)
        self._controller.loop_changed()
        return json_response({"evaluates": self._loop.evaluations.due_after(step + 1)})

    async def state(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        await self._controller.rollouts.written()
        header, blobs = snapshot(self._loop, body_int(body, "step"), self._controller.digest)
        header[PROBE_NOISE] = self._controller.servers.probe_noise.state()
        header[PROBE_TOKENS] = self._controller.probe_tokens
        state = pack(header, blobs)
        await self._controller.sync_records()  # with all that the state counts as done
        return binary_response(state)

    async def finished(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        self._controller.finished(body_field(body, "early", bool))
        return json_response({"ok": True})
