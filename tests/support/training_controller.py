"""A controller for tests of the trainer: the real routes and messages, with invented groups."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web
from transformers import AutoModelForCausalLM

from areal_like.discovery import announce, open_name_store
from areal_like.process import frames, http
from areal_like.process.identity import CallGuard, Identity
from areal_like.process.run import Run
from areal_like.rollout.batches import FACTS, OPTIONAL_FACTS
from areal_like.rollout.trajectory import Trajectory, pack_group
from areal_like.weights.disk import LoadedWeights, load_version

CONTROLLER = Identity("rollout", 0)
Groups = Sequence[Sequence[Trajectory]]
Make = Callable[["FakeController", int], Groups]


class FakeController:
    """Serves in a separate thread inside `with`; records the calls."""

    def __init__(self, run: Run, secret: str, make: Make, total_steps: int, stop_at: int | None = None) -> None:
        self.run, self._secret, self._make, self._stop_at = run, secret, make, stop_at
        self.total_steps = total_steps
        self.calls: list[tuple[str, Any]] = []
        self.published: dict[int, LoadedWeights] = {}
        self.probe_tokens = [each % 40 for each in range(64)]
        self.evaluates: dict[int, list[str]] = {}
        """Step that is done -> names of the rows whose evaluation is due then."""
        self.awaited: list[int] = []
        """Versions that evaluations wait for."""
        self.lag: int | None = None
        """Batch N waits for the weights of version N - lag; for none if None."""
        self._waited: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> "FakeController":
        self._thread.start()
        self._served = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)
        self._names = open_name_store(self.run, CONTROLLER)
        announce(self._names, CONTROLLER, self._served.address)
        return self

    def __exit__(self, *exception: object) -> None:
        self._names.close()
        asyncio.run_coroutine_threadsafe(self._served.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def requests_to(self, path: str) -> list[Any]:
        """The bodies of the calls of one route, in order."""
        return [body for called, body in self.calls if called == path]

    async def _serve(self) -> Any:
        app = http.application(CallGuard(self._secret))
        app.router.add_get("/facts", self._facts)
        for path in ("/publish", "/done", "/finished"):
            app.router.add_post(path, self._note)
        app.router.add_post("/batch", self._batch)
        app.router.add_post("/state", self._state)
        return await http.serve(app, "127.0.0.1")

    async def _facts(self, request: web.Request) -> web.Response:
        facts = {**self._limits, "train_rows": 100, "valid_rows": 0}
        return http.json_response({"ready": True, "start_step": 0, "probe_tokens": self.probe_tokens, **facts})

    async def _note(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((request.path, body))
        if request.path == "/publish":
            folder = Path(body["folder"])
            self.published[body["version"]] = load_version(folder, expected_of(self.run), newer_than=-1)
            return http.json_response({"awaited": self.awaited})
        return http.json_response({"evaluates": self.evaluates.get(body.get("step", -1), [])})

    async def _state(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((request.path, body))
        return web.Response(body=frames.pack({"cursor": body["step"]}, [b"a group"]))

    async def _batch(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((request.path, body))
        step = body["step"]
        is_early = self.lag is not None and max(0, step - self.lag) not in self.published
        if is_early or step not in self._waited:
            self._waited.add(step)
            return web.Response(body=frames.pack({"wait": True, "results": 0, "limit": [60.0, "agent.timeout_s"]}))
        if step == self._stop_at:
            return web.Response(body=frames.pack({"stop": "requested by a user"}))
        header, blobs = batch_frame(step, self._make(self, step), body["rank"], body["world"])
        return web.Response(body=frames.pack({**header, **self._limits}, blobs))

    @property
    def _limits(self) -> dict[str, int]:
        return {"total_steps": self.total_steps, "steps_per_epoch": 100}


def expected_of(run: Run) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What a server would expect of a publication."""
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    return {name: (tuple(parameter.shape), parameter.dtype) for name, parameter in model.named_parameters()}


def batch_frame(step: int, groups: Groups, rank: int = 0, world: int = 1) -> tuple[dict[str, Any], list[bytes]]:
    """As the controller answers a rank: group after group, dealt to the ranks in turn."""
    samples, blobs = [], []
    for number, group in enumerate(groups):
        facts, blob = pack_group(group)
        if number % world == rank:
            blobs.append(blob)
        for index, fact in enumerate(facts):
            known = {name: fact[name] for name in (*FACTS, "conversation", *OPTIONAL_FACTS) if name in fact}
            samples.append({"group": number + 1000 * step, "sample": index, **known, "rank": number % world})
    shard = [index for index, sample in enumerate(samples) if sample["rank"] == rank]
    return {"step": step, "samples": samples, "shard": shard}, blobs


def trajectory(
    ids: Sequence[int], prompt: int, reward: float, version: int = 0, logprobs: Sequence[float] | None = None
) -> Trajectory:
    """A sample whose first `prompt` tokens were not generated."""
    generated = np.arange(len(ids)) >= prompt
    return Trajectory(
        token_ids=np.array(ids),
        loss_mask=generated.astype(np.uint8),
        logprobs=np.where(generated, -1.0 if logprobs is None else np.array(logprobs), 0.0),
        versions=np.where(generated, version, -1),
        reward=reward,
        rewards={"score": reward},
    )
