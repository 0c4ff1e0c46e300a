"""Every sampling parameter changes the distribution as in transformers, and so the log-probabilities."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.logit_processors import (
    NUCLEUS_CANDIDATES,
    UsedProcessors,
    smallest_kept_logit,
)
from areal_like.serving.requests import BadRequest, GeneratedSample, GroupRequest, Sampling
from tests.support.tiny_models import EOS_ID, VOCAB, tiny_llama, tiny_qwen3

torch.set_num_threads(1)

PROMPT = (5, 9, 13, 9, 20, 5)
SAMPLING_OPTIONS: list[dict[str, Any]] = [
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.08},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"frequency_penalty": 0.8},
    {"frequency_penalty": -0.4},
    {"min_new_tokens": 4, "stop_token_ids": (7, 11)},
    {"temperature": 0.6, "top_k": 9, "top_p": 0.8},
    {"temperature": 1.7, "top_p": 0.9, "min_p": 0.05},
    {
        **{"temperature": 0.8, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "min_new_tokens": 2},
        **{"repetition_penalty": 1.2, "frequency_penalty": 0.5},
    },
]


def expected(logits_V: torch.Tensor, answer: Sequence[int], how: Sampling) -> torch.Tensor:
    """The distribution after PROMPT and the answer so far, by the processors of transformers. It has none for
    frequencies: that one is what OpenAI's documentation says."""
    ids: Any = torch.tensor([[*PROMPT, *answer]])
    scores: Any = logits_V[None].float()
    if how.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(how.repetition_penalty)(ids, scores)
    for token in answer:
        scores[0, token] -= how.frequency_penalty
    rest = LogitsProcessorList()
    if how.min_new_tokens:
        ends = [EOS_ID, *how.stop_token_ids]
        rest.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), how.min_new_tokens, ends))
    if not how.is_greedy:
        rest.append(TemperatureLogitsWarper(how.temperature))
        rest += [TopKLogitsWarper(how.top_k)] if how.top_k else []
        rest += [TopPLogitsWarper(how.top_p)] if how.top_p < 1 else []
        rest += [MinPLogitsWarper(how.min_p)] if how.min_p else []
    return torch.log_softmax(rest(ids, scores)[0], -1)


def logits_after(model: Any, answer: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([[*PROMPT, *answer]])).logits[0, -1]
    return logits


def generated(model: Any, n: int, how: Sampling, **more: Any) -> list[GeneratedSample]:
    engine = LLMEngine(model, max_running_requests=max(n, 8))
    return engine.generate([GroupRequest("g", PROMPT, n, 3, how, **more)])[0].samples


@pytest.mark.parametrize("how", SAMPLING_OPTIONS, ids=str)
@pytest.mark.parametrize("family", [tiny_qwen3, tiny_llama])
def test_the_distribution_is_that_of_transformers(family: Any, how: dict[str, Any]) -> None:
    """The whole distribution, since all tokens are reported as top log-probabilities."""
    model, sampling = family(), Sampling(max_new_tokens=10, **how)
    for sample in generated(family(), 3, sampling, top_logprobs=VOCAB):
        for place, token in enumerate(sample.token_ids):
            target = expected(logits_after(model, sample.token_ids[:place]), sample.token_ids[:place], sampling)
            logprobs = torch.full((VOCAB,), -torch.inf)
            for other, logprob in sample.top_logprobs[place].items():  # type: ignore[attr-defined]
                logprobs[other] = logprob
            assert torch.equal(logprobs.isfinite(), target.isfinite())
            torch.testing.assert_close(logprobs.exp(), target.exp(), atol=1e-6, rtol=0)
            assert abs(sample.logprobs[place] - float(target[token])) < 1e-5


@pytest.mark.parametrize("how", SAMPLING_OPTIONS, ids=str)
def test_token_frequencies_match_the_distribution(how: dict[str, Any]) -> None:
    number, sampling = 4000, Sampling(max_new_tokens=1, **how)
    counts = np.bincount([one.token_ids[0] for one in generated(tiny_llama(), number, sampling)], minlength=VOCAB)
    chance = expected(logits_after(tiny_llama(), []), [], sampling).exp().double().numpy()
    assert not counts[chance == 0].any()
    spread = np.sqrt(number * chance * (1 - chance))
    assert (np.abs(counts - number * chance) < 5 * spread + 3).all()


@pytest.mark.parametrize("how", [{"repetition_penalty": 1.5}, {"frequency_penalty": 1.0}, {"min_new_tokens": 6}])
def test_greedy_sampling_applies_penalties(how: dict[str, Any]) -> None:
    sampling = Sampling(greedy=True, max_new_tokens=12, top_k=3, top_p=0.2, min_p=0.5, **how)
    (sample,) = generated(tiny_qwen3(), 1, sampling)
    model = tiny_qwen3()
    for place, token in enumerate(sample.token_ids):
        target = expected(logits_after(model, sample.token_ids[:place]), sample.token_ids[:place], sampling)
        assert (token, abs(sample.logprobs[place] - float(target[token])) < 1e-5) == (int(target.argmax()), True)


def test_plain_rows_keep_their_bits_in_a_batch_with_processed_rows() -> None:
    plain = [
        GroupRequest(str(seed), PROMPT, 3, seed, Sampling(max_new_tokens=12, temperature=0.9)) for seed in range(4)
    ]
    shaped = [
        GroupRequest(f"s{number}", PROMPT, 2, 50 + number, Sampling(max_new_tokens=5 + number, **how))
        for number, how in enumerate(SAMPLING_OPTIONS)
    ]
    alone = [one.samples for one in LLMEngine(tiny_qwen3(), max_running_requests=40).generate(plain)]
    mixed = LLMEngine(tiny_qwen3(), max_running_requests=40).generate([*plain[:2], *shaped, *plain[2:]])
    by_id = {one.id: one.samples for one in mixed}
    assert [[sample.token_ids for sample in by_id[str(seed)]] for seed in range(4)] == [
        [sample.token_ids for sample in samples] for samples in alone
    ]
    for number, group in enumerate(shaped):
        (by_itself,) = LLMEngine(tiny_qwen3(), max_running_requests=40).generate([group])
        tokens = [sample.token_ids for sample in by_itself.samples]
        assert [sample.token_ids for sample in by_id[group.id]] == tokens, SAMPLING_OPTIONS[number]


def test_neutral_values_are_the_plain_path_to_the_last_bit() -> None:
    neutral = Sampling(max_new_tokens=12, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, frequency_penalty=0.0)
    assert neutral.is_plain
    (one, other) = (
        LLMEngine(tiny_qwen3()).generate([GroupRequest("g", PROMPT, 5, 3, how)])[0].samples
        for how in (neutral, Sampling(max_new_tokens=12))
    )
    assert one == other


def test_preemption_does_not_change_penalties() -> None:
    how = Sampling(max_new_tokens=150, repetition_penalty=1.1, frequency_penalty=0.05, top_p=0.97, min_new_tokens=120)
    groups = [GroupRequest(str(seed), PROMPT[: 3 + seed], 4, seed, how) for seed in range(3)]
    engines = [LLMEngine(tiny_qwen3(max_position_embeddings=256), kv_cache_tokens=tokens) for tokens in (None, 700)]
    large_cache, tight = (
        [[one.token_ids for one in each.samples] for each in engine.generate(groups)] for engine in engines
    )
    assert engines[1].counts.interrupted > 0
    assert tight == large_cache


def test_min_new_tokens_forbids_the_models_end_and_the_requests() -> None:
    free = Sampling(max_new_tokens=30, stop_token_ids=tuple(range(2, 34)))
    early = [len(sample.token_ids) for sample in generated(tiny_llama(), 20, free)]
    assert min(early) < 6
    held = Sampling(max_new_tokens=30, min_new_tokens=6, stop_token_ids=tuple(range(2, 34)))
    for sample in generated(tiny_llama(), 20, held):
        assert len(sample.token_ids) > 6 and not {EOS_ID, *range(2, 34)} & set(sample.token_ids[:6])
    never = Sampling(min_new_tokens=1, stop_token_ids=(*range(VOCAB),))
    message = r"^gconfig.stop_token_ids: every token is a stop token, but gconfig.min_new_tokens=\d+ requires others$"
    with pytest.raises(BadRequest, match=message):
        LLMEngine(tiny_llama()).submit(GroupRequest("g", PROMPT, 1, 0, never))


def test_a_large_vocabulary_is_cut_as_a_small_one_is() -> None:
    """Top-p looks among the likeliest first, and sorts all where these are not enough."""
    torch.manual_seed(0)
    vocabulary = 4 * NUCLEUS_CANDIDATES
    logits = torch.cat([torch.randn(3, vocabulary) * scale for scale in (0.05, 1.0, 4.0)])
    p = torch.tensor([0.3, 0.9, 0.999] * 3, dtype=torch.float64)
    for k in (0, 50, 2000):
        used = UsedProcessors(repetition=False, frequency=False, max_top_k=k, top_p=True, min_p=False)
        least = smallest_kept_logit(logits, torch.full((9,), k), p, torch.zeros(9), used)
        for row in range(9):
            scores = TopKLogitsWarper(k)(None, logits[row : row + 1]) if k else logits[row : row + 1]
            target = TopPLogitsWarper(float(p[row]))(None, scores)[0]
            kept = int((logits[row] >= least[row]).sum())
            assert abs(kept - int(target.isfinite().sum())) <= 1  # sums in float32, there
