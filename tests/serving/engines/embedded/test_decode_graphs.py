"""Captured decode steps give the answers of plain ones, with the weights in use; nothing in them waits for the host."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from areal_like.serving.engines.embedded.core import decode_graphs
from areal_like.serving.engines.embedded.core.decode_graphs import HostReads, padded_columns, padded_rows
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.model_runner import ModelRunner
from areal_like.serving.engines.embedded.core.sampler import sampled
from areal_like.serving.requests import GroupRequest, Sampling
from areal_like.weights.probe import Probe, check_probe
from tests.support.embedded_adapters import loaded, write_adapter
from tests.support.recorded_graphs import capture
from tests.support.tiny_models import VOCAB, tiny_llama, tiny_qwen3

torch.set_num_threads(1)

PROMPT = (5, 9, 13, 20)
NO_WEIGHTS: Any = None


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that answers of some tokens go through several widths."""
    monkeypatch.setattr(decode_graphs, "FIRST_COLUMNS", 16)


def engine_with_graphs(model: PreTrainedModel, **settings: Any) -> LLMEngine:
    return LLMEngine(model, 32, capture=capture, **settings)


def requests(count: int = 4, max_tokens: int = 28, **sampling: Any) -> list[GroupRequest]:
    """Prompts and answers of several lengths."""
    return [
        GroupRequest(
            str(i), PROMPT * (1 + i % 3), 1 + i % 3, i, Sampling(max_new_tokens=max_tokens - 3 * i, **sampling)
        )
        for i in range(count)
    ]


def answers(engine: LLMEngine, groups: list[GroupRequest]) -> list[tuple[list[int], list[float], str]]:
    finished = engine.generate(groups)
    return [(one.token_ids, one.logprobs, one.finish) for group in finished for one in group.samples]


def graphs_of(engine: LLMEngine) -> decode_graphs.DecodeGraphs:
    assert engine.runner.graphs is not None
    return engine.runner.graphs


def assert_same(got: Any, want: Any) -> None:
    for (tokens, logprobs, finish), (wanted, of_wanted, end) in zip(got, want, strict=True):
        assert (tokens, finish) == (wanted, end)
        assert logprobs == pytest.approx(of_wanted, abs=2e-5)


@pytest.mark.parametrize("make", [tiny_qwen3, tiny_llama])
def test_captured_steps_give_the_answers_of_plain_ones(make: Callable[[], PreTrainedModel]) -> None:
    engine = engine_with_graphs(make())
    assert_same(answers(engine, requests()), answers(LLMEngine(make(), 32), requests()))
    counts = graphs_of(engine).counts
    assert counts.captured > 2 and counts.replayed > 2 * counts.captured
    assert engine.statistics()["graphs"] == {"captured": counts.captured, "replayed": counts.replayed}


@pytest.mark.slow
def test_a_preempted_sequence_continues_in_captured_steps() -> None:
    model = tiny_qwen3(max_position_embeddings=128)
    groups = [GroupRequest("g", PROMPT, 4, 3, Sampling(max_new_tokens=90))]
    plain = LLMEngine(copy.deepcopy(model), 32)
    engine = engine_with_graphs(model, kv_cache_tokens=320)
    for one in (plain, engine):
        one.eos_token_ids.clear()
    assert_same(answers(engine, groups), answers(plain, groups))
    assert engine.counts.interrupted > 0 and graphs_of(engine).counts.replayed > 0


def new_weights(seed: int) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in tiny_qwen3(seed).named_parameters()}


def decoded_with(engine: LLMEngine) -> Probe:
    """An answer as a probe: its log-probabilities come from captured steps."""
    replayed = graphs_of(engine).counts.replayed
    greedy = GroupRequest("probe", PROMPT, 1, 0, Sampling(max_new_tokens=10, temperature=0.0))
    (answer,) = [sample for finished in engine.generate([greedy]) for sample in finished.samples]
    assert graphs_of(engine).counts.replayed > replayed
    return Probe([*PROMPT, *answer.token_ids], [*LLMEngine.logprobs(engine, PROMPT), *answer.logprobs])


def swapped_three_times(engine: LLMEngine) -> None:
    """After each swap, captured steps must compute what the trainer of these weights computes."""
    engine.eos_token_ids.clear()
    decoded_with(engine)
    for version in (1, 2, 3):
        engine.update_weights(new_weights(version), version)
        probe = decoded_with(engine)
        check_probe(probe, LLMEngine(tiny_qwen3(version)).logprobs(probe.token_ids), "float32")


def test_captured_steps_compute_with_the_weights_in_use() -> None:
    swapped_three_times(engine_with_graphs(tiny_qwen3()))


def test_a_graph_of_the_other_set_of_weights_would_be_found(monkeypatch) -> None:
    """The fault that the test above is to find: hashes are right, and steps compute with the old set."""
    engine = engine_with_graphs(tiny_qwen3())
    monkeypatch.setattr(engine.weights, "_live_addresses", lambda: engine.weights.addresses)
    with pytest.raises(ValueError, match="trainer and server compute different models"):
        swapped_three_times(engine)


def test_both_sets_of_weights_keep_their_graphs() -> None:
    engine = engine_with_graphs(tiny_qwen3())
    engine.eos_token_ids.clear()
    captured = []
    for version in range(1, 6):
        engine.update_weights(new_weights(version), version)
        engine.generate(requests(2, 12))
        captured.append(graphs_of(engine).counts.captured)
    assert captured[-1] == captured[-2] == captured[-3]


def test_running_sequences_continue_in_captured_steps_after_a_swap() -> None:
    engine, plain = engine_with_graphs(tiny_qwen3()), LLMEngine(tiny_qwen3(), 32)
    results = []
    for one in (engine, plain):
        for group in requests(4):
            one.submit(group)
        done = []
        for step in range(40):
            if step in (7, 18):
                one.update_weights(new_weights(step), step)
            done += one.step()
        done.sort(key=lambda group: group.number)
        results.append([(one.token_ids, one.logprobs, one.finish) for group in done for one in group.samples])
    assert_same(*results)


def test_a_cache_that_moves_drops_its_graphs() -> None:
    engine = engine_with_graphs(tiny_qwen3())
    engine.generate(requests(1, 8))
    layout, kept = engine.cache.layout, list(graphs_of(engine)._graphs)
    assert kept
    want = answers(LLMEngine(tiny_qwen3(), 32), requests(6))
    assert_same(answers(engine, requests(6)), want)
    assert engine.cache.layout > layout and not {key.columns for key in graphs_of(engine)._graphs} & {16}


def test_the_longest_unused_graph_is_dropped(monkeypatch) -> None:
    monkeypatch.setattr(decode_graphs, "MAX_GRAPHS", 2)
    engine = engine_with_graphs(tiny_qwen3())
    assert_same(answers(engine, requests()), answers(LLMEngine(tiny_qwen3(), 32), requests()))
    assert len(graphs_of(engine)._graphs) <= 2


def test_adapters_are_computed_beside_the_graphs_and_logits_processed_behind_them(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "one", tiny_qwen3(), 1)
    both = engine_with_graphs(tiny_qwen3()), LLMEngine(tiny_qwen3(), 32)
    results = []
    for engine in both:
        loaded(engine, folder, "one")
        groups = [GroupRequest("a", PROMPT, 2, 1, Sampling(max_new_tokens=20), adapter="one"), *requests(2)]
        groups += requests(2, top_k=5, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.3, min_new_tokens=4)
        results.append(answers(engine, groups))
        replayed = engine.runner.graphs and engine.runner.graphs.counts.replayed
        results[-1] += answers(engine, groups[:1])
        assert not replayed or graphs_of(engine).counts.replayed == replayed
    assert_same(*results)


def test_a_model_that_reads_values_on_the_host_is_not_captured(caplog) -> None:
    model = tiny_qwen3()
    mlp = model.model.layers[1].mlp
    mlp.register_forward_hook(lambda module, given, output: output * float(output.isfinite().any()))
    engine = engine_with_graphs(model)
    assert_same(answers(engine, requests(3)), answers(LLMEngine(tiny_qwen3(), 32), requests(3)))
    assert graphs_of(engine).counts.captured == 0
    assert [record.getMessage() for record in caplog.records].count(
        "embedded.enforce_eager: decode steps are not captured, generation is slower: the model reads values on the "
        "host (item)"
    ) == 1


def test_a_failed_capture_leaves_plain_steps(caplog) -> None:
    def fail(step: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    engine = LLMEngine(tiny_qwen3(), 32, capture=fail)
    assert_same(answers(engine, requests(3)), answers(LLMEngine(tiny_qwen3(), 32), requests(3)))
    assert "the capture failed: CUDA error: operation not permitted" in caplog.text


@pytest.mark.parametrize("make", [tiny_qwen3, tiny_llama])
def test_a_captured_step_depends_on_no_values(make: Callable[[], PreTrainedModel]) -> None:
    """Fake tensors have no values: an operator that needs one raises."""
    with torch.inference_mode(), FakeTensorMode(), HostReads() as reads:
        runner = ModelRunner(make(), 4096, lambda row: None, NO_WEIGHTS, 8)
        runner.cache.reserve(8, 64, 0, 0)
        logits = runner._decode_padded(torch.zeros(8, 2, dtype=torch.int64), 48)
    assert logits.shape == (8, VOCAB) and not reads.found


@pytest.mark.parametrize("processed", [{}, {"top_k": 5, "repetition_penalty": 1.2, "min_new_tokens": 4, "min_p": 0.1}])
def test_sampling_reads_from_the_device_once_a_step(processed: dict[str, Any]) -> None:
    engine = LLMEngine(tiny_qwen3(), 32)
    for group in requests(3, **processed):
        engine.submit(group)
    engine.step()
    rows = np.arange(engine._batch.count)
    with torch.inference_mode(), HostReads() as reads:
        on_device = sampled(engine._batch, rows, torch.randn(len(rows), engine.vocab_size), engine.runner.tensor)
    assert not reads.found and on_device.shape == (3 if processed else 2, len(rows))


def test_batches_and_widths_are_padded_to_few_sizes() -> None:
    sizes = sorted({padded_rows(rows) for rows in range(1, 257)})
    assert sizes == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256]
    assert all(rows <= padded_rows(rows) <= max(2 * rows - 1, rows * 1.8) for rows in range(1, 1000) if rows > 1)
    assert [padded_columns(width) for width in (1, 16, 17, 33, 1025)] == [16, 16, 32, 64, 2048]


def test_a_full_cache_is_read_up_to_its_last_column() -> None:
    """The next power of two does not fit: the step is captured with the columns that there are."""
    engine = engine_with_graphs(tiny_qwen3(), kv_cache_tokens=32 * 48, context_length=48)
    assert graphs_of(engine).shape(32, 40) == (32, 48)
    assert graphs_of(engine).shape(32, 49) is None
    assert graphs_of(engine).shape(8, 40) == (8, 64)


def test_fixed_memory_of_the_cache_is_taken_once() -> None:
    engine = engine_with_graphs(tiny_qwen3(), kv_cache_tokens=4096)
    engine.warm_up()
    layers = engine.cache.slots
    memory = [(layer.keys.untyped_storage().data_ptr(), layer.keys.untyped_storage().nbytes()) for layer in layers]
    assert {nbytes for _, nbytes in memory} == {4096 * 2 * 8 * 4}
    engine.generate(requests(8))
    assert engine.cache.layout > 1
    assert memory == [
        (layer.keys.untyped_storage().data_ptr(), layer.keys.untyped_storage().nbytes()) for layer in layers
    ]
    with torch.inference_mode():
        layers[0].keys.fill_(torch.nan)
        engine.cache.reset()
    assert layers[0]._memory["keys"].count_nonzero() == 0
