"""Tokens per second of a server, over HTTP with log-probabilities as a worker asks for them."""

import asyncio
import functools
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.gpu.models import QWEN3_0_6B, TINY
from tests.gpu.report import Aim, Report
from tests.support.engines import LiveServer, started
from tests.support.server_session import ServerSession, group, open_session

COUNTS, PROMPT, NEW, REPEATS = (64, 256), 64, 256, 3
SMALL_COUNTS, SMALL_NEW = (4,), 16
TOKENS_PER_S = {64: Aim(7_500, 10_000), 256: Aim(30_000, 40_000)}
"""Requests in flight -> tokens per second on one H100. A step of 64 takes as long as one of 256: it reads the same
weights."""
LIMIT_S = 400


def decode(report: Report) -> None:
    generate(report, "embedded")


def generate(report: Report, engine: str) -> None:
    """Random weights of Qwen3-0.6B's shape, in bfloat16."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        models = functools.partial(shaped, small=report.small)
        began = time.perf_counter()
        with started(engine, Path(name), "actor.dtype=bfloat16", models=models) as server:
            report.figure("server ready after", time.perf_counter() - began, "s")
            asyncio.run(asyncio.wait_for(ask(report, server), LIMIT_S))


async def ask(report: Report, server: LiveServer) -> None:
    counts, new = (SMALL_COUNTS, SMALL_NEW) if report.small else (COUNTS, NEW)
    async with open_session(server) as one:
        await one.update(1, probe=None)
        began = time.perf_counter()
        await one.generate(group("first", max_new_tokens=1))
        report.figure("the first answer", time.perf_counter() - began, "s")
        for count in counts:
            seconds = [await batch(one, count, new, number) for number in range(1 + REPEATS)][1:]
            report.figure(f"{count} in flight", count * new / median(seconds), "tokens/s", TOKENS_PER_S.get(count))


async def batch(one: ServerSession, count: int, new: int, number: int) -> float:
    """Requests with different prompts, all at once; the seconds until all are answered."""
    exact = {"min_new_tokens": new, "max_new_tokens": new}
    prompts = [[2 + (place + at) % 200 for at in range(PROMPT)] for place in range(count)]
    groups = [group(f"{number}.{at}", prompt, 1, 1000 * number + at, **exact) for at, prompt in enumerate(prompts)]
    began = time.perf_counter()
    answers = await one.generate(*groups)
    seconds = time.perf_counter() - began
    if any(len(samples[0]["token_ids"]) != new for samples in answers):
        raise RuntimeError(f"not every answer has the {new} tokens that were asked for")
    return seconds


@functools.cache
def shaped(seed: int, small: bool) -> PreTrainedModel:
    torch.manual_seed(seed)
    made: Any = AutoModelForCausalLM.from_config(TINY if small else QWEN3_0_6B, dtype=torch.bfloat16)
    made.eval()
    return cast(PreTrainedModel, made)
