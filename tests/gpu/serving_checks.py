"""Checks of an engine's server: numbers compared with transformers, weight updates during generation, speed."""

import asyncio
import functools
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any, Self, cast

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from areal_like.process.errors import HttpError
from tests.gpu.models import QWEN3_0_6B, TINY
from tests.ring.server import flip_a_byte
from tests.support.engine_answers import (
    PARITY,
    check_in_flight,
    generating,
    keep_in_flight,
    largest_gap,
    logprob_gaps,
    long_groups,
)
from tests.support.engine_transports import send
from tests.support.engines import PROBE, LiveServer, Models, model, started
from tests.support.server_session import ServerSession, group, in_session

Result = dict[str, Any]
Update = Callable[[int], Awaitable[dict[str, Any]]]

BFLOAT16 = (0.5, 0.03)
"""Maximum and mean difference per token of two programs in bfloat16."""
PROMPT, NEW = 64, 256


class Tiny:
    """A server in float32 for several checks, started by the first of them."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self._server: LiveServer | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self._stack.close()

    @property
    def server(self) -> LiveServer:
        if self._server is None:
            self._server = self._stack.enter_context(server_of(self.engine))
        return self._server


@contextmanager
def server_of(engine: str, *words: str, models: Models = model) -> Iterator[LiveServer]:
    with (
        tempfile.TemporaryDirectory(prefix="gpu-serving-") as name,
        started(engine, Path(name), *words, models=models) as server,
    ):
        yield server


@functools.cache
def rounded(seed: int) -> PreTrainedModel:
    """The same weights in bfloat16."""
    made: Any = AutoModelForCausalLM.from_config(model(seed).config, dtype=torch.bfloat16)
    made.load_state_dict(model(seed).state_dict())
    made.eval()
    return cast(PreTrainedModel, made)


def parity(tiny: Tiny, device: torch.device, small: bool) -> Result:
    """In float32, at two temperatures, with weights from files."""
    gaps: list[float] = []
    in_session(tiny.server, functools.partial(_ask, gaps, model))
    return {"passed": max(gaps) <= PARITY, "off_max": max(gaps), "off_mean": fmean(gaps)}


def bfloat16(tiny: Tiny, device: torch.device, small: bool) -> Result:
    """The same, both in bfloat16."""
    gaps: list[float] = []
    with server_of(tiny.engine, "actor.dtype=bfloat16", models=rounded) as server:
        in_session(server, functools.partial(_ask, gaps, rounded))
    worst, mean = max(gaps), fmean(gaps)
    return {"passed": worst <= BFLOAT16[0] and mean <= BFLOAT16[1], "off_max": worst, "off_mean": mean}


async def _ask(gaps: list[float], models: Models, one: ServerSession) -> None:
    await one.update(1)
    seeds = {one.server.version: 1}
    for temperature in (1.0, 0.5):
        requests = [
            group(str(number), PROBE[:length], n=4, seed=number, temperature=temperature, max_new_tokens=64)
            for number, length in enumerate((1, 4, 8))
        ]
        for request, samples in zip(requests, await one.generate(*requests), strict=True):
            for sample in samples:
                gaps.extend(logprob_gaps(request["prompt"], sample, seeds, temperature, models=models))


def updates(tiny: Tiny, device: torch.device, small: bool) -> Result:
    """By files and by broadcast during generation: the samples agree with both sets of weights. Damaged weights are
    refused by name and change nothing."""
    result: Result = {"passed": True, "off_max": {}}

    async def test(one: ServerSession) -> None:
        ways: list[tuple[str, Update]] = [("disk", one.update), ("collective", functools.partial(send, one))]
        for name, update in ways:
            await one.update(1)
            old, requests = one.server.version, long_groups(one.server, 8, n=2)
            answers = asyncio.ensure_future(one.generate(*requests))
            await one.until(generating)
            await update(2)
            seeds = {old: 1, one.server.version: 2}
            pairs = list(zip(requests, await answers, strict=True))
            result["off_max"][name] = max(
                largest_gap(request["prompt"], sample, seeds) for request, each in pairs for sample in each
            )
            result["passed"] = result["passed"] and result["off_max"][name] <= PARITY
        body = one.server.published(1)
        flip_a_byte(Path(body["folder"]), "model.layers.1.mlp.up_proj.weight")
        try:
            await one.post("/control/update_weights", body)
            result["passed"] = False
        except HttpError as refused:
            result["refusal"] = refused.message
            result["passed"] = result["passed"] and "mlp.up_proj.weight" in refused.message
        (samples,) = await one.generate(group("after"))
        result["passed"] = result["passed"] and largest_gap(PROBE[:5], samples[0], {one.server.version: 2}) <= PARITY

    in_session(tiny.server, test)
    return result


def in_flight(tiny: Tiny, device: torch.device, small: bool) -> Result:
    """256 requests during ten updates."""
    count, times = (16, 3) if small else (256, 10)
    result: Result = {}

    async def test(one: ServerSession) -> None:
        answered, seeds = await keep_in_flight(one, count, times, tokens=64, pause_s=0.2)
        result["off_max"] = check_in_flight(answered, seeds, count, tokens=64)
        result["passed"], result["answered"] = result["off_max"] <= PARITY, len(answered)

    in_session(tiny.server, test)
    return result


@functools.cache
def shaped(seed: int, small: bool) -> PreTrainedModel:
    torch.manual_seed(seed)
    made: Any = AutoModelForCausalLM.from_config(TINY if small else QWEN3_0_6B, dtype=torch.bfloat16)
    made.eval()
    return cast(PreTrainedModel, made)


def speed(tiny: Tiny, device: torch.device, small: bool) -> Result:
    """Random weights of the shape of Qwen3-0.6B: time to the first token, tokens per second, and updates compared with
    a copy of the bytes in memory."""
    counts, new = ((4,), 16) if small else ((64, 256), NEW)
    models = functools.partial(shaped, small=small)
    result: Result = {"passed": True, "tokens_per_s_in_flight": {}, "updates": {}}

    async def test(one: ServerSession) -> None:
        await one.update(1)
        began = time.perf_counter()
        await one.generate(group("first", max_new_tokens=1))
        result["first_answer_s"] = time.perf_counter() - began
        for count in counts:
            requests = [
                group(str(place), [2 + (place + at) % 200 for at in range(PROMPT)], 1, place, **_exact(new))
                for place in range(count)
            ]
            taken = []
            for _ in range(3):
                began = time.perf_counter()
                await one.generate(*requests)
                taken.append(time.perf_counter() - began)
            result["tokens_per_s_in_flight"][count] = count * new / median(taken)
        ways: list[tuple[str, Update]] = [("disk", one.update), ("collective", functools.partial(send, one))]
        for name, update in ways:
            rows = [await update(number % 2) for number in range(3)]
            result["updates"][name] = {key: median(row[key] for row in rows) for key in ("stall_s", "load_s")}

    began = time.perf_counter()
    with server_of(tiny.engine, "actor.dtype=bfloat16", models=models) as server:
        result["ready_s"] = time.perf_counter() - began
        tensors = [tensor for _, tensor in server.tensors(1)]
        began = time.perf_counter()
        copies = [tensor.clone() for tensor in tensors]
        result["copy_s"], result["num_bytes"] = time.perf_counter() - began, sum(each.nbytes for each in copies)
        in_session(server, test, limit_s=300)
    result["tokens_per_s"], result["mfu"] = max(result["tokens_per_s_in_flight"].values()), None
    return result


def _exact(tokens: int) -> dict[str, int]:
    return {"min_new_tokens": tokens, "max_new_tokens": tokens}
