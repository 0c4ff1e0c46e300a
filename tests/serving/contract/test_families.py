"""Other models and precisions on a real server of every engine: log-probabilities and updates."""

import copy
import functools
from pathlib import Path
from statistics import fmean

import pytest
import torch
from transformers import PreTrainedModel

from tests.support.engine_answers import PARITY, logprob_gaps
from tests.support.engine_environments import ENGINES, require_engine
from tests.support.engine_transports import send
from tests.support.engines import PROBE, Models, llama, mixture, model, started
from tests.support.server_session import ServerSession, group, in_session

BFLOAT16_MAX, BFLOAT16_MEAN = 0.5, 0.03
"""How far two programs may be apart in bfloat16, whose numbers have eight bits: the worst token, and on average."""

EVERY = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ENGINES]


@functools.cache
def rounded(seed: int) -> PreTrainedModel:
    """In bfloat16."""
    made = copy.deepcopy(model(seed))
    torch.nn.Module.to(made, torch.bfloat16)
    return made


def differences(engine: str, root: Path, models: Models, *words: str) -> list[float]:
    """Of log-probabilities from those of transformers, at two temperatures, with weights from files and by a group."""
    require_engine(engine)
    results: list[float] = []

    async def ask(one: ServerSession) -> None:
        prompts = [PROBE[:length] for length in (1, 4, 8)] + [PROBE * 10]
        for temperature in (1.0, 0.5):
            request = [
                group(str(number), prompt, n=2, seed=number, temperature=temperature, max_new_tokens=48)
                for number, prompt in enumerate(prompts)
            ]
            for response, samples in zip(request, await one.generate(*request), strict=True):
                seeds = {one.server.version: one.server.seed}
                for sample in samples:
                    results.extend(logprob_gaps(response["prompt"], sample, seeds, temperature, models=models))

    async def test(one: ServerSession) -> None:
        await one.update(1)
        await ask(one)
        await send(one, 2)
        await ask(one)

    with started(engine, root, *words, models=models) as server:
        in_session(server, test, limit_s=180)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("engine", EVERY)
def test_a_llama_gives_the_logprobs_of_transformers(engine: str, tmp_path: Path) -> None:
    assert max(differences(engine, tmp_path, llama)) <= PARITY


@pytest.mark.slow
@pytest.mark.parametrize("engine", EVERY[:1])
def test_a_mixture_of_experts_gives_the_logprobs_of_transformers(engine: str, tmp_path: Path) -> None:
    assert max(differences(engine, tmp_path, mixture)) <= PARITY


@pytest.mark.slow
@pytest.mark.parametrize("engine", EVERY)
def test_bfloat16_logprobs_are_near_transformers(engine: str, tmp_path: Path) -> None:
    results = differences(engine, tmp_path, rounded, "actor.dtype=bfloat16")
    assert max(results) <= BFLOAT16_MAX and fmean(results) <= BFLOAT16_MEAN, (max(results), fmean(results))
