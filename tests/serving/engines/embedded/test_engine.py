"""The engine gives the numbers of transformers, whatever else is in the batch."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.waiting_queue import QueuedGroup
from areal_like.serving.requests import BadRequest, FinishedGroup, GeneratedSample, GroupRequest, Sampling, StepSlot
from tests.support.tiny_models import EOS_ID, VOCAB, tiny_llama, tiny_qwen3

torch.set_num_threads(1)

MAKERS = {"qwen3": tiny_qwen3, "llama": tiny_llama}


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(2, VOCAB) for _ in range(length))


def groups(number: int, n: int = 3, **sampling: Any) -> list[GroupRequest]:
    """Prompts of several lengths, among them equal ones."""
    parameters = Sampling(**{"max_new_tokens": 10, **sampling})
    return [GroupRequest(str(seed), prompt(1 + seed % 5, seed), n, seed, parameters) for seed in range(number)]


def expected_logprobs(
    model: PreTrainedModel, before: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Of `tokens` after `before`, by one forward pass over the whole sequence."""
    ids = torch.tensor([[*before, *tokens]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1] / temperature
    return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[len(before) - 1 :, 0]


def tokens_of(finished: Sequence[FinishedGroup]) -> list[list[list[int]]]:
    return [[sample.token_ids for sample in one.samples] for one in finished]


def assert_explained(model: PreTrainedModel, group: GroupRequest, sample: GeneratedSample, temperature: float) -> None:
    expected = expected_logprobs(model, group.prompt, sample.token_ids, temperature)
    torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_match_transformers(family: str, temperature: float) -> None:
    requests = groups(8, temperature=temperature)
    engine = LLMEngine(MAKERS[family](), max_running_requests=9)
    for group, finished in zip(requests, engine.generate(requests), strict=True):
        for sample in finished.samples:
            assert_explained(MAKERS[family](), group, sample, temperature)


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("how", [{"greedy": True, "temperature": 0.3}, {"temperature": 0.0}])
def test_greedy_tokens_match_transformers(family: str, how: dict[str, Any]) -> None:
    model = MAKERS[family]()
    requests = groups(6, n=1, **how)
    for group, finished in zip(requests, LLMEngine(MAKERS[family]()).generate(requests), strict=True):
        tokens = list(group.prompt)
        for token in finished.samples[0].token_ids:
            with torch.no_grad():
                assert int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()) == token
            tokens.append(token)
        assert_explained(model, group, finished.samples[0], 1.0)


def test_a_request_gets_the_same_tokens_alone_and_among_others() -> None:
    requests = groups(12)
    together = tokens_of(LLMEngine(tiny_qwen3(), max_running_requests=11).generate(requests))
    alone = [tokens_of(LLMEngine(tiny_qwen3()).generate([group]))[0] for group in requests]
    assert together == alone


def test_one_prefill_for_a_group_equals_one_for_each_sample() -> None:
    engine = LLMEngine(tiny_qwen3())
    group = GroupRequest("g", prompt(7), 6, 5, Sampling(max_new_tokens=6))
    together = engine.generate([group])[0]
    assert engine.counts.prompt_tokens == 7
    one_by_one = LLMEngine(tiny_qwen3(), max_running_requests=1)
    apart = one_by_one.generate([group])[0]
    assert one_by_one.counts.prompt_tokens == 6 * 7
    assert [sample.token_ids for sample in apart.samples] == [sample.token_ids for sample in together.samples]
    for left, right in zip(apart.samples, together.samples, strict=True):
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5)


def test_samples_and_seeds_differ() -> None:
    first, second, again = LLMEngine(tiny_qwen3()).generate(
        [
            GroupRequest(name, prompt(4), 4, seed, Sampling(max_new_tokens=12))
            for name, seed in (("a", 1), ("b", 2), ("c", 1))
        ]
    )
    answers = [tuple(sample.token_ids) for sample in (*first.samples, *second.samples)]
    assert len(set(answers)) == 8
    assert tokens_of([first]) == tokens_of([again])


def test_token_frequencies_match_probabilities() -> None:
    model, number = tiny_llama(), 4000
    group = GroupRequest("g", prompt(5), number, 7, Sampling(max_new_tokens=1, temperature=0.7))
    finished = LLMEngine(tiny_llama(), max_running_requests=number).generate([group])[0]
    counts = np.bincount([sample.token_ids[0] for sample in finished.samples], minlength=VOCAB)
    with torch.no_grad():
        chance = (model(input_ids=torch.tensor([group.prompt])).logits[0, -1] / 0.7).softmax(-1).double().numpy()
    spread = np.sqrt(number * chance * (1 - chance))
    assert (np.abs(counts - number * chance) < 5 * spread + 3).all()


def test_an_answer_ends_with_a_stop_token_or_at_a_limit() -> None:
    free = LLMEngine(tiny_qwen3()).generate([GroupRequest("g", prompt(6), 4, 3, Sampling(max_new_tokens=8))])[0].samples
    stop = free[0].token_ids[3]
    stopped = (
        LLMEngine(tiny_qwen3())
        .generate([GroupRequest("g", prompt(6), 4, 3, Sampling(max_new_tokens=8, stop_token_ids=(stop,)))])[0]
        .samples
    )
    for before, after in zip(free, stopped, strict=True):
        tokens = before.token_ids
        expected = tokens[: tokens.index(stop) + 1] if stop in tokens else tokens
        assert (after.token_ids, after.finish) == (expected, "stop" if expected[-1] in (stop, EOS_ID) else "length")
        assert len(after.token_ids) == len(after.logprobs) == len(after.versions)
    assert stopped[0].finish == "stop"


def test_the_models_own_end_token_ends_an_answer() -> None:
    model = tiny_qwen3()
    group = GroupRequest("g", prompt(3), 1, 0, Sampling(max_new_tokens=5))
    likely = LLMEngine(model).generate([group])[0].samples[0].token_ids[0]
    model.generation_config.eos_token_id = [likely, EOS_ID]
    sample = LLMEngine(model).generate([group])[0].samples[0]
    assert (sample.token_ids, sample.finish) == ([likely], "stop")


@pytest.mark.parametrize(
    ("sampling", "context_length", "length"),
    [({"max_new_tokens": 5}, None, 5), ({"max_tokens": 9}, None, 3), ({}, 13, 7)],
)
def test_the_smallest_of_the_limits_cuts_an_answer_off(
    sampling: dict[str, Any], context_length: int | None, length: int
) -> None:
    engine = LLMEngine(tiny_llama(), context_length=context_length)
    sample = engine.generate([GroupRequest("g", prompt(6), 1, 0, Sampling(**sampling))])[0].samples[0]
    assert (len(sample.token_ids), sample.finish) == (length, "length")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"prompt": prompt(64)}, "embedded.context_length: the prompt has 64 tokens"),
        ({"prompt": prompt(9), "sampling": Sampling(max_tokens=9)}, "gconfig.max_tokens: "),
        ({"sampling": Sampling(max_new_tokens=50)}, "embedded.kv_cache_tokens: .* lower gconfig.max_new_tokens"),
    ],
)
def test_a_group_that_never_fits_is_refused(changes: dict[str, Any], key: str) -> None:
    engine = LLMEngine(tiny_qwen3(), kv_cache_tokens=48)
    with pytest.raises(BadRequest, match=f"^{key}"):
        engine.submit(GroupRequest(**{"id": "g", "prompt": prompt(6), **changes}))
    assert not engine.has_work


def test_a_small_cache_preempts_sequences_and_changes_no_token() -> None:
    requests = groups(3, n=4, max_new_tokens=150)
    engines = [LLMEngine(tiny_qwen3(max_position_embeddings=256), kv_cache_tokens=tokens) for tokens in (None, 640)]
    large_cache, tight = (tokens_of(engine.generate(requests)) for engine in engines)
    assert tight == large_cache
    assert engines[1].cache.rows * engines[1].cache.columns <= 640
    assert engines[1].counts.recomputed == engines[1].counts.interrupted > 0 == engines[0].counts.interrupted


def test_a_decoding_step_costs_running_sequences_only() -> None:
    engine = LLMEngine(tiny_qwen3())
    shapes = []
    engine.runner.model.register_forward_pre_hook(
        lambda module, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    short, long = (GroupRequest(str(n), prompt(6), 3, 0, Sampling(max_new_tokens=n)) for n in (2, 5))
    engine.generate([short, long])
    assert shapes == [(2, 6), (6, 1), (3, 1), (3, 1), (3, 1)]


def test_new_weights_take_over_in_the_middle_of_an_answer() -> None:
    old, new = tiny_qwen3(0), tiny_qwen3(1)
    engine = LLMEngine(tiny_qwen3(0))
    requests = groups(5, n=2, temperature=0.8)
    engine.update_weights(dict(old.named_parameters()), 3)
    for group in requests:
        engine.submit(group)
    done = engine.step() + engine.step()  # the first step gives two tokens: the prompt's and one more
    engine.update_weights(dict(new.named_parameters()), 4)
    while engine.has_work:
        done += engine.step()
    assert len(done) == len(requests)
    for finished in done:
        group = requests[int(finished.id)]
        for sample in finished.samples:
            assert sample.versions == ([3] * 3 + [4] * 7)[: len(sample.token_ids)]
            before, after = sample.token_ids[:3], sample.token_ids[3:]
            expected = [expected_logprobs(old, group.prompt, before, 0.8)]
            if after:
                expected.append(expected_logprobs(new, [*group.prompt, *before], after, 0.8))
            torch.testing.assert_close(torch.tensor(sample.logprobs), torch.cat(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", MAKERS)
def test_weights_of_another_model_are_refused_and_nothing_changes(family: str) -> None:
    engine = LLMEngine(MAKERS[family]())
    requests = groups(2)
    before = tokens_of(engine.generate(requests))
    good = dict(MAKERS[family](1).named_parameters())
    name = "model.layers.1.mlp.up_proj.weight"
    for bad, message in (
        ({key: good[key] for key in good if key != name}, f"{name} is missing"),
        ({**good, "more": torch.zeros(1)}, "more is unknown"),
        ({**good, name: good[name][:3]}, f"{name} has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.update_weights(bad, 1)
    assert (engine.version, tokens_of(engine.generate(requests))) == (-1, before)
    engine.update_weights(good, 1)
    assert tokens_of(engine.generate(requests)) != before


def test_tied_weights_have_one_name() -> None:
    assert "lm_head.weight" not in LLMEngine(tiny_qwen3()).weights.expected()
    assert "lm_head.weight" in LLMEngine(tiny_llama()).weights.expected()


def test_nonfinite_weights_end_their_groups_and_leave_nothing_behind() -> None:
    engine = LLMEngine(tiny_qwen3())
    requests = groups(4, max_new_tokens=6)
    good = tokens_of(engine.generate(requests))
    weights = {name: tensor.detach().clone() for name, tensor in tiny_qwen3().named_parameters()}
    engine.update_weights({**weights, "model.norm.weight": torch.full((32,), torch.nan)}, 1)
    with pytest.raises(RuntimeError, match="weights of version 1 give log-probabilities that are not finite"):
        engine.generate(requests)
    engine.update_weights(weights, 2)
    assert tokens_of(engine.generate(requests)) == good


def test_an_abort_ends_only_matching_requests() -> None:
    engine = LLMEngine(tiny_qwen3(), max_running_requests=6)
    requests = groups(6)
    kept = tokens_of(engine.generate(requests))
    for group in requests:
        engine.submit(group)
    done = engine.step()

    def matches(queued: QueuedGroup) -> bool:
        return queued.group.id in ("1", "4")  # one that runs and one that waits

    assert engine.num_running == 6 and engine.num_waiting == 4
    assert engine.abort("enough", matches) == 2
    while engine.has_work:
        done += engine.step()
    by_id = {one.id: one for one in done}
    assert {one.error for one in done if one.id in ("1", "4")} == {"enough"}
    assert [tokens_of([by_id[i]])[0] for i in "0235"] == [kept[int(i)] for i in "0235"]


def ordered(requests: Sequence[GroupRequest], key: str) -> list[GroupRequest]:
    return [
        GroupRequest(one.id, one.prompt, one.n, one.seed, one.sampling, StepSlot(key, place, len(requests)))
        for place, one in enumerate(requests)
    ]


def test_a_synchronous_step_gives_the_same_bits_however_its_groups_arrive() -> None:
    requests = ordered(groups(10, max_new_tokens=12), "3.1")
    others = groups(3, n=2, max_new_tokens=20)

    def run(seed: int) -> list[FinishedGroup]:
        """With `seed` groups that belong to no step."""
        engine = LLMEngine(tiny_qwen3(), max_running_requests=12, kv_cache_tokens=12 * 16)
        shuffled = random.Random(seed).sample(requests, len(requests))
        for other in others[:seed]:
            engine.submit(other)
        done = []
        for number, group in enumerate(shuffled):
            if number % (seed + 1) == 0:
                done += engine.step()
            engine.submit(group)
        while engine.has_work:
            done += engine.step()
        return [one for one in done if len(one.samples) == 3]

    first = {one.id: one.samples for one in run(0)}
    assert len(first) == 10
    for seed in (1, 2, 3):  # tokens and log-probabilities, to the last bit
        assert {one.id: one.samples for one in run(seed)} == first


def test_a_synchronous_step_starts_when_all_its_groups_have_arrived() -> None:
    engine = LLMEngine(tiny_qwen3())
    first, second = ordered(groups(2), "0.1")
    engine.submit(second)
    assert (engine.has_work, engine.step(), engine.num_running) == (False, [], 0)
    with pytest.raises(BadRequest, match=r"^order.place: "):
        engine.submit(second)
    engine.submit(first)
    assert engine.has_work
    engine.step()
    assert engine.num_running == 6
    with pytest.raises(RuntimeError, match="wait for others of their step"):
        engine.generate([ordered(groups(2), "1.1")[0]])


def test_a_synchronous_step_starts_without_the_groups_whose_places_are_left() -> None:
    engine = LLMEngine(tiny_qwen3())
    first, second, third = ordered(groups(3), "0.1")
    slots = [one.order for one in (first, second, third)]
    assert slots[0] is not None and slots[1] is not None and slots[2] is not None
    engine.waiting.leave(slots[2])
    engine.waiting.leave(slots[2])  # again, as a request that is repeated
    engine.submit(second)
    engine.abort("as another group ends", lambda queued: queued.group.id == "none")
    assert (engine.has_work, engine.step()) == (False, [])
    with pytest.raises(BadRequest, match=r"^order.place: "):
        engine.submit(third)
    engine.waiting.leave(slots[0])
    engine.step()
    assert engine.num_running == 3


def test_the_place_of_a_group_that_is_removed_after_it_was_given_up_is_left() -> None:
    """Its client tells the engine before the engine knows that the client is gone."""
    engine = LLMEngine(tiny_qwen3())
    first, second = ordered(groups(2), "0.1")
    assert first.order is not None
    engine.submit(first)
    engine.waiting.leave(first.order)
    engine.abort("cancelled", lambda queued: queued.group.id == first.id)
    engine.submit(second)
    engine.step()
    assert engine.num_running == 3


def test_a_step_of_left_places_alone_keeps_nobody_waiting() -> None:
    engine = LLMEngine(tiny_qwen3())
    for one in ordered(groups(2), "0.1"):
        assert one.order is not None
        engine.waiting.leave(one.order)
    of_aborted = ordered(groups(2), "0.2")[1].order
    assert of_aborted is not None
    engine.waiting.leave(of_aborted)  # of a step that began again
    finished = engine.generate(ordered(groups(2), "0.3"))
    assert [len(one.samples) for one in finished] == [3, 3]
