"""Long prompts are computed in chunks: same answers, and running sequences are not delayed."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.requests import FinishedGroup, GroupRequest, Sampling, StepSlot
from tests.serving.engines.embedded.test_engine import expected_logprobs
from tests.support.tiny_models import VOCAB, tiny_llama, tiny_qwen3

torch.set_num_threads(1)

LONG: dict[str, Any] = {"max_position_embeddings": 1024}
MAKERS = {"qwen3": tiny_qwen3, "llama": tiny_llama}


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(2, VOCAB) for _ in range(length))


def mixed(**sampling: Any) -> list[GroupRequest]:
    """Lengths around multiples of 64, short ones between them."""
    lengths = (300, 5, 64, 65, 12, 128, 129, 512, 7)
    parameters = Sampling(**{"max_new_tokens": 12, **sampling})
    return [GroupRequest(str(seed), prompt(length, seed), 3, seed, parameters) for seed, length in enumerate(lengths)]


def answers(engine: LLMEngine, groups: list[GroupRequest]) -> list[FinishedGroup]:
    return engine.generate(groups)


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("sampling", [{"greedy": True}, {"temperature": 0.8}], ids=str)
def test_chunks_give_the_same_answers_as_whole_prompts(family: str, sampling: dict[str, Any]) -> None:
    groups = mixed(**sampling)
    whole = LLMEngine(MAKERS[family](**LONG), max_running_requests=8, prefill_chunk=1 << 20).generate(groups)
    engine = LLMEngine(MAKERS[family](**LONG), max_running_requests=8, prefill_chunk=64)
    for one, other, group in zip(engine.generate(groups), whole, groups, strict=True):
        for left, right in zip(one.samples, other.samples, strict=True):
            assert left.token_ids == right.token_ids
            np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5)
            temperature = sampling.get("temperature", 1.0)
            expected = expected_logprobs(MAKERS[family](**LONG), group.prompt, left.token_ids, temperature)
            torch.testing.assert_close(torch.tensor(left.logprobs), expected, atol=1e-5, rtol=0)
    assert engine.counts.prompt_tokens == sum(len(group.prompt) for group in groups)


def check_no_chunks(engine: LLMEngine) -> None:
    for layer in engine.cache.slots:
        with pytest.raises(AssertionError, match="no chunk was computed"):
            layer.copy_chunks(torch.tensor([0]))


def test_running_sequences_get_a_token_between_two_chunks() -> None:
    engine = LLMEngine(tiny_qwen3(**LONG), prefill_chunk=64)
    shapes: list[tuple[int, ...]] = []
    engine.runner.model.register_forward_pre_hook(
        lambda module, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    engine.submit(GroupRequest("short", prompt(4), 2, 0, Sampling(max_new_tokens=30)))
    engine.step()
    engine.submit(GroupRequest("long", prompt(200), 2, 0, Sampling(max_new_tokens=2)))
    del shapes[:]
    for _ in range(5):
        engine.step()
    assert shapes == [(1, 64), (2, 1), (1, 64), (2, 1), (1, 64), (2, 1), (1, 8), (4, 1), (2, 1)]


def test_a_group_larger_than_the_engine_keeps_its_prompt_until_all_have_started() -> None:
    group = GroupRequest("g", prompt(150), 7, 3, Sampling(max_new_tokens=5))
    engine = LLMEngine(tiny_qwen3(**LONG), max_running_requests=3, prefill_chunk=64)
    chunked = engine.generate([group])[0].samples
    assert engine.counts.prompt_tokens == 150
    whole = LLMEngine(tiny_qwen3(**LONG)).generate([group])[0].samples
    assert [one.token_ids for one in chunked] == [one.token_ids for one in whole]
    check_no_chunks(engine)


def test_chunks_and_whole_prompts_give_the_same_answers_with_logit_processors() -> None:
    """Samples that start in several steps share the logits after the prompt, which processors change in place."""
    parameters = Sampling(max_new_tokens=5, repetition_penalty=1.5, top_p=0.9)
    group = GroupRequest("g", prompt(150), 7, 3, parameters)
    chunked, whole = (
        LLMEngine(tiny_qwen3(**LONG), max_running_requests=3, prefill_chunk=size).generate([group])[0].samples
        for size in (64, 1 << 20)
    )
    for left, right in zip(chunked, whole, strict=True):
        assert left.token_ids == right.token_ids
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5)


def test_new_weights_and_aborts_drop_computed_chunks() -> None:
    engine = LLMEngine(tiny_qwen3(0, **LONG), prefill_chunk=64)
    group = GroupRequest("g", prompt(300), 1, 3, Sampling(max_new_tokens=6))
    engine.submit(group)
    engine.step()
    engine.update_weights(dict(tiny_qwen3(1, **LONG).named_parameters()), 1)
    done: list[FinishedGroup] = []
    while engine.has_work:
        done += engine.step()
    (sample,) = done[0].samples
    expected = expected_logprobs(tiny_qwen3(1, **LONG), group.prompt, sample.token_ids)
    torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-5, rtol=0)
    assert sample.versions == [1] * len(sample.token_ids)

    engine.submit(group)
    engine.step()
    assert engine.abort("enough") == 1 and not engine.has_work
    check_no_chunks(engine)
    assert engine.take_finished()[0].error == "enough"
    assert engine.generate([group])[0].samples[0].token_ids == sample.token_ids


def test_a_synchronous_step_computes_whole_prompts() -> None:
    groups = [
        GroupRequest(one.id, one.prompt, one.n, one.seed, one.sampling, StepSlot("1", place, 9))
        for place, one in enumerate(mixed())
    ]
    (chunked, whole) = (LLMEngine(tiny_qwen3(**LONG), prefill_chunk=size).generate(groups) for size in (64, 1 << 20))
    assert [one.samples for one in chunked] == [one.samples for one in whole]
