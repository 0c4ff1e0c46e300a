"""Adapters in the embedded engine give the numbers that peft gives, row by row."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.weights.adapters import adapter_tensors
from areal_like.serving.engines.embedded.weights.batched_lora import BatchedLora
from areal_like.serving.requests import BadRequest, FinishedGroup, GroupRequest, Sampling
from areal_like.weights.adapter import read_peft_folder
from areal_like.weights.device_checksum import checksums
from areal_like.weights.errors import BadWeights
from areal_like.weights.fingerprint import tensor_hashes
from tests.support.embedded_adapters import ALL, ATTENTION, loaded, logprobs_by, with_peft, write_adapter
from tests.support.tiny_models import tiny_llama, tiny_qwen3

torch.set_num_threads(1)

PROMPTS = ((5, 9, 13, 20), (7, 30, 2, 11), (3, 4, 5, 6, 7, 8, 9))
MODELS = {"qwen3": tiny_qwen3, "llama": tiny_llama}


def request(
    adapter: str | None, prompt: tuple[int, ...], n: int = 2, seed: int = 3, max_tokens: int = 8
) -> GroupRequest:
    return GroupRequest(f"{adapter} {prompt}", prompt, n, seed, Sampling(max_new_tokens=max_tokens), adapter=adapter)


def assert_as_computed_by(model: Any, finished: FinishedGroup, group: GroupRequest, tolerance: float = 1e-5) -> None:
    for sample in finished.samples:
        expected = logprobs_by(model, [*group.prompt, *sample.token_ids])[len(group.prompt) - 1 :]
        assert sample.logprobs == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("kind", MODELS)
def test_one_batch_of_the_model_and_two_adapters_matches_peft(tmp_path: Path, kind: str) -> None:
    model = MODELS[kind]()
    one = write_adapter(tmp_path / "one", model, 1)
    two = write_adapter(tmp_path / "two", model, 2, r=7, lora_alpha=5, target_modules=ATTENTION, use_rslora=True)
    by_peft = {"": copy.deepcopy(model), "one": with_peft(model, one), "two": with_peft(model, two)}
    engine = LLMEngine(model, max_running_requests=32)
    for folder in (one, two):
        adapter = loaded(engine, folder, folder.name)
        logprobs = engine.logprobs(list(PROMPTS[2]), adapter)
        assert logprobs == pytest.approx(logprobs_by(by_peft[folder.name], list(PROMPTS[2])), abs=1e-5)
    groups = [request(name, prompt) for prompt in PROMPTS for name in by_peft]
    for group, finished in zip(groups, engine.generate(groups), strict=True):
        assert group.adapter is not None
        assert_as_computed_by(by_peft[group.adapter], finished, group)
        others = [other for name, other in by_peft.items() if name != group.adapter]
        for other in others:
            with pytest.raises(AssertionError):
                assert_as_computed_by(other, finished, group, tolerance=1e-3)


def test_an_adapter_is_rounded_as_peft_rounds_it(tmp_path: Path) -> None:
    """In another order of operations, bfloat16 differs from the trainer several times as much."""
    model, tokens = tiny_llama().bfloat16(), list(PROMPTS[2])
    folder = write_adapter(tmp_path / "one", model, 1, lora_alpha=5)
    expected = logprobs_by(with_peft(model, folder).bfloat16(), tokens)
    lora = BatchedLora(model)
    lora.set_batch([LLMEngine(tiny_llama().bfloat16(), 32).adapters.make(read_peft_folder(folder), "one", "one")])
    assert logprobs_by(model, tokens) == expected


def test_an_adapter_that_changes_nothing_changes_no_bit(tmp_path: Path) -> None:
    plain, adapted = LLMEngine(tiny_qwen3(), 32), LLMEngine(tiny_qwen3(), 32)
    loaded(adapted, write_adapter(tmp_path / "zero", tiny_qwen3(), 1, strength=0), "zero")
    expected = plain.generate([request("", prompt) for prompt in PROMPTS])
    actual = adapted.generate([request("zero", prompt) for prompt in PROMPTS])
    assert [one.samples for one in actual] == [one.samples for one in expected]


def test_loaded_adapters_do_not_change_answers_of_the_bare_model(tmp_path: Path) -> None:
    plain, engine = LLMEngine(tiny_qwen3(), 32), LLMEngine(tiny_qwen3(), 32)
    loaded(engine, write_adapter(tmp_path / "one", tiny_qwen3(), 1), "one")
    engine.generate([request("one", PROMPTS[0])])
    groups = [request("", prompt) for prompt in PROMPTS]
    assert [one.samples for one in engine.generate(groups)] == [one.samples for one in plain.generate(groups)]
    assert not any(module._forward_hooks for module in engine.runner.model.modules())


def test_a_preempted_sequence_resumes_with_its_adapter(tmp_path: Path) -> None:
    model = tiny_qwen3(max_position_embeddings=256)
    folder = write_adapter(tmp_path / "one", model, 1)
    peft = {"one": with_peft(model, folder), "": copy.deepcopy(model)}
    engine = LLMEngine(model, max_running_requests=32, kv_cache_tokens=640)
    loaded(engine, folder, "one")
    groups = [request(name, prompt, n=4, max_tokens=150) for prompt in PROMPTS[:2] for name in peft]
    for group, finished in zip(groups, engine.generate(groups), strict=True):
        assert group.adapter is not None
        assert_as_computed_by(peft[group.adapter], finished, group)
    assert engine.counts.interrupted > 0


def test_sequences_preempted_by_a_pause_resume_with_their_adapter(tmp_path: Path) -> None:
    model = tiny_qwen3()
    folder = write_adapter(tmp_path / "one", model, 1)
    peft = {"one": with_peft(model, folder), "": copy.deepcopy(model)}
    engine = LLMEngine(model, 32)
    loaded(engine, folder, "one")
    groups = {engine.submit(group): group for group in (request(name, PROMPTS[0], max_tokens=30) for name in peft)}
    finished = [*engine.step(), *engine.step()]
    assert engine.num_running > 0
    engine.preempt_all()
    assert engine.num_running == 0
    while engine.has_work:
        finished += engine.step()
    for one in finished:
        group = groups[one.number]
        assert_as_computed_by(peft[group.adapter or ""], one, group)


def test_a_long_prompt_is_computed_in_chunks_with_its_adapter(tmp_path: Path) -> None:
    model = tiny_qwen3()
    folder = write_adapter(tmp_path / "one", model, 1)
    peft = {"one": with_peft(model, folder), "": copy.deepcopy(model)}
    engine = LLMEngine(model, 32, prefill_chunk=5)
    loaded(engine, folder, "one")
    groups = [request(name, PROMPTS[at] * (2 + at)) for at in (0, 2) for name in peft]
    for group, finished in zip(groups, engine.generate(groups), strict=True):
        assert_as_computed_by(peft[group.adapter or ""], finished, group)


def test_an_adapter_is_hashed_in_the_precision_of_the_model(tmp_path: Path) -> None:
    model = tiny_qwen3()
    folder = write_adapter(tmp_path / "one", model, 1)
    files, by_peft = read_peft_folder(folder), with_peft(model, folder)
    engine = LLMEngine(model.bfloat16(), 32)
    adapter = engine.adapters.make(files, "one", "one")
    assert {matrix.dtype for layer in adapter.layers.values() for matrix in layer} == {torch.bfloat16}
    assert tensor_hashes(adapter_tensors(adapter)) == engine.adapters.expected_hashes(files)
    assert checksums(adapter_tensors(adapter)) == engine.adapters.expected_checksums(files)
    engine.adapters.add(adapter)
    (finished,) = engine.generate([request("one", PROMPTS[0])])
    assert_as_computed_by(by_peft, finished, request("one", PROMPTS[0]), 0.3)


def test_running_groups_finish_with_an_unloaded_adapter(tmp_path: Path) -> None:
    model = tiny_qwen3()
    folder = write_adapter(tmp_path / "one", model, 1)
    by_peft = with_peft(model, folder)
    engine = LLMEngine(model, 32)
    loaded(engine, folder, "one")
    group = request("one", PROMPTS[0])
    engine.submit(group)
    engine.step()
    engine.adapters.remove("one")
    with pytest.raises(BadRequest, match="one is not loaded; no adapter is"):
        engine.submit(group)
    finished: list[FinishedGroup] = []
    while engine.has_work:
        finished += engine.step()
    assert_as_computed_by(by_peft, finished[0], group)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["norm"], "target_modules": ATTENTION}, "modules_to_save"),
        ({"target_modules": ["lm_head"]}, "lm_head shares its weight"),
        ({"target_modules": ["embed_tokens"]}, "no linear layer embed_tokens; there are down_proj"),
        ({"bias": "all"}, "bias=all"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"layers_to_transform": [0], "layers_pattern": "layers"}, "layers_to_transform"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_unsupported_adapter_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    model = tiny_qwen3()
    folder = write_adapter(tmp_path / "one", model, 1, **settings)
    with pytest.raises(BadWeights, match=message):
        loaded(LLMEngine(model), folder, "one")


def test_an_adapter_of_another_shape_is_refused_with_tensor_and_layer(tmp_path: Path) -> None:
    engine = LLMEngine(tiny_qwen3())
    folder = write_adapter(tmp_path / "wide", tiny_qwen3(intermediate_size=96), 1)
    with pytest.raises(BadWeights, match=r"layers\.0\.mlp\.\S+ \(layer 0\) has shape \[96, 4\] and not \[64, 4\]"):
        loaded(engine, folder, "wide")
    folder = write_adapter(tmp_path / "shallow", tiny_qwen3(num_hidden_layers=1), 1)
    with pytest.raises(BadWeights, match="layer 1: 14 tensors are missing"):
        loaded(engine, folder, "shallow")
    folder = write_adapter(tmp_path / "deep", tiny_qwen3(num_hidden_layers=3), 1)
    with pytest.raises(BadWeights, match="layer 2: 14 tensors are not in target_modules"):
        loaded(engine, folder, "deep")


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = tiny_qwen3()
    files = read_peft_folder(write_adapter(tmp_path / "one", model, 1))
    files.contents[files.infos[5].name].view("float32")[3] = float("nan")
    with pytest.raises(BadWeights, match=f"{files.infos[5].name} .*not finite"):
        LLMEngine(model).adapters.make(files, "one", "one")


def test_targets_are_read_as_peft_reads_them(tmp_path: Path) -> None:
    model = tiny_llama()
    for number, targets in enumerate((r".*\.1\.self_attn\.(q|k)_proj", "all-linear", ["model.layers.0.mlp.up_proj"])):
        folder = write_adapter(tmp_path / str(number), model, 1, target_modules=targets)
        adapter = LLMEngine(model).adapters.make(read_peft_folder(folder), "one", "one")
        assert len(adapter.layers) == (2, len(ALL) * 2, 1)[number]
