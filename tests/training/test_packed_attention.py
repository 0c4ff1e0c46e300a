"""Packed sequences have the log-probabilities and gradients of single ones."""

import copy
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM

from areal_like.config.problems import ConfigError
from areal_like.config.sections.train_engine import MicroBatchSpec
from areal_like.training import attention
from areal_like.training.attention import packed_attention
from areal_like.training.full_tensor import full_tensor
from areal_like.training.length_groups import LengthGroup, group_by_length
from areal_like.training.sequences import MicroBatch, Sequences
from tests.support.training_runs import make_engine, model_folder, section, world

LENGTHS = [7, 3, 12, 7, 2, 7, 9]


@pytest.fixture
def sequences() -> Sequences:
    """Of several lengths; the loss counts some tokens in the middle, and not the last ones of each."""
    draw = np.random.default_rng(0)
    lengths = np.array(LENGTHS)
    mask = draw.integers(0, 2, lengths.sum())
    mask[np.cumsum(lengths) - lengths + 1] = 1
    return Sequences(draw.integers(0, 40, lengths.sum()).astype(np.int32), mask, lengths)


def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
    """Every token has a different weight, so that a swap is noticed."""
    return -(logprobs * micro.fields["weight"]).sum()


def gradient_of(parameter: torch.nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return full_tensor(parameter.grad)


def one_by_one(folder, sequences: Sequences, temperature: float) -> tuple[dict[int, Tensor], dict[str, Tensor]]:
    """By transformers itself, one sequence after the other: log-probabilities of what counts, and gradients."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    actual = {}
    for row, (start, length) in enumerate(zip(sequences.starts_N, LENGTHS, strict=True)):
        ids = torch.tensor(sequences.token_ids[start : start + length], dtype=torch.int64)
        logits = model(ids[None]).logits[0] / temperature
        logprobs = logits.log_softmax(-1)[:-1].gather(-1, ids[1:, None]).squeeze(-1)
        actual[row] = logprobs[torch.tensor(sequences.target_mask[start + 1 : start + length])]
        (-(actual[row] * torch.arange(1, len(actual[row]) + 1)).sum()).backward()
    return actual, {name: gradient_of(parameter) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["qwen3", "llama", "mistral", "gemma3", "gemma2"])
def test_packed_sequences_have_the_logprobs_and_gradients_of_single_ones(name, attention, sequences, tmp_path):
    folder = model_folder(tmp_path, name)
    engine = make_engine(folder, attn_impl=attention)
    expected, gradients = one_by_one(folder, sequences, temperature=0.7)
    sequences.fields["weight"] = np.concatenate(
        [np.cumsum(part) for part in np.split(sequences.target_mask.astype(np.float32), np.cumsum(LENGTHS)[:-1])]
    )

    micro = sequences.micro_batch(range(len(LENGTHS)), world().device)
    got = engine.logprobs([micro], temperature=0.7)[0]
    engine.accumulate([micro], loss, temperature=0.7)

    target = torch.cat([expected[int(row)] for row in micro.rows_N])
    assert len(micro.length_groups) < len(LENGTHS), "sequences of one length are computed together"
    torch.testing.assert_close(got, target, atol=1e-5, rtol=0)
    for parameter_name, parameter in engine.model.named_parameters():
        target = gradients[parameter_name]
        assert (gradient_of(parameter) - target).norm() <= 1e-5 * target.norm(), parameter_name


def test_the_split_into_micro_batches_changes_no_gradient(sequences, tmp_path):
    folder = model_folder(tmp_path, "qwen3")
    sequences.fields["weight"] = np.linspace(0.5, 1.5, len(sequences.token_ids)).astype(np.float32)
    actual = {}
    for name, spec in {
        "one": section(MicroBatchSpec, n_mbs=1),
        "three": section(MicroBatchSpec, n_mbs=3),
        "small": section(MicroBatchSpec, n_mbs=None, max_tokens_per_mb=12),
        "pairs": section(MicroBatchSpec, n_mbs=3, granularity=2),
        "padded": section(MicroBatchSpec, n_mbs=2, max_tokens_per_mb=64),
    }.items():
        engine = make_engine(folder, mb_spec=spec, pad_to_maximum=name == "padded")
        micros = engine.micro_batches(sequences, range(len(LENGTHS)))
        total = engine.accumulate(micros, loss).item()
        actual[name] = (micros, total, [gradient_of(parameter) for parameter in engine.parameters])

    assert [len(actual[name][0]) for name in ("one", "three")] == [1, 3] and len(actual["small"][0]) > 2
    assert [len(micro.input_ids_T) for micro in actual["padded"][0]] == [64, 64]
    for name in ("three", "small", "pairs", "padded"):
        assert actual[name][1] == pytest.approx(actual["one"][1], rel=1e-6)
        torch.testing.assert_close(actual[name][2], actual["one"][2], atol=1e-5, rtol=1e-5)


def rows_of(micros: list[MicroBatch]) -> list[set[int]]:
    return [set(micro.rows_N.tolist()) for micro in micros]


def test_neighbours_stay_in_one_micro_batch_if_others_are_skipped(sequences, tmp_path):
    engine = make_engine(model_folder(tmp_path, "qwen3"), mb_spec=section(MicroBatchSpec, n_mbs=4, granularity=2))

    assert sorted(map(sorted, rows_of(engine.micro_batches(sequences, range(6))))) == [[0, 1], [2, 3], [4, 5]]
    assert sorted(map(sorted, rows_of(engine.micro_batches(sequences, [1, 4, 5])))) == [[1], [4, 5]]


def test_padding_sequences_are_no_longer_than_real_ones_and_predict_nothing(sequences):
    plain = sequences.micro_batch([1, 6], world().device)
    padded = sequences.micro_batch([1, 6], world().device, pad_to=30)

    assert len(padded.input_ids_T) == 30 and padded.cu_seqlens[-1] == 30
    assert max(group.length for group in padded.length_groups) == max(group.length for group in plain.length_groups)
    assert padded.position_ids_T.max() == plain.position_ids_T.max()
    for name in ("predicts_P", "targets_P"):
        assert torch.equal(getattr(padded, name), getattr(plain, name))
    assert padded.loss_tokens_N == plain.loss_tokens_N
    assert len(sequences.micro_batch([1, 6], world().device, pad_to=3).input_ids_T) == len(plain.input_ids_T)


def test_tokens_after_the_last_token_in_the_loss_are_not_computed():
    sequences = Sequences(np.arange(10, dtype=np.int32), np.array([0, 0, 1, 0, 0, 0, 1, 0, 1, 0]), np.array([5, 5]))

    micro = sequences.micro_batch([0, 1], world().device)

    assert micro.input_ids_T.tolist() == [0, 1, 5, 6, 7]
    assert micro.targets_P.tolist() == [2, 6, 8]
    assert micro.predicts_P.tolist() == [1, 2, 4]
    assert micro.loss_tokens_N == (1, 2)


def test_the_first_token_of_a_sequence_never_counts():
    sequences = Sequences(np.arange(6, dtype=np.int32), np.ones(6), np.array([2, 4]))

    assert sequences.target_mask.tolist() == [False, True, False, True, True, True]
    assert sequences.loss_tokens_N.tolist() == [1, 3]


def test_values_of_predicted_tokens_return_to_their_positions():
    sequences = Sequences(np.arange(10, dtype=np.int32), np.array([0, 0, 1, 1, 0, 0, 1, 0, 0, 1]), np.array([6, 4]))
    micros = [sequences.micro_batch([row], world().device) for row in (1, 0)]

    placed = sequences.scatter(micros, [micro.targets_P * 10.0 for micro in micros])

    assert placed.tolist() == [0, 0, 20, 30, 0, 0, 0, 0, 0, 90]


def test_neighbours_of_one_length_are_one_run():
    groups = [LengthGroup(0, 2, 2), LengthGroup(4, 1, 5), LengthGroup(9, 3, 7)]
    assert list(group_by_length([2, 2, 5, 7, 7, 7])) == groups
    assert not list(group_by_length([]))


def attend(**given: Any) -> Tensor:
    part = torch.zeros(1, 2, 3, 4)
    return packed_attention(
        torch.nn.Identity(), part, part, part, None, 1.0, length_groups=group_by_length([3]), **given
    )[0]


def test_a_model_that_changes_its_attention_scores_is_refused():
    with pytest.raises(ValueError, match="s_aux"):
        attend(s_aux=torch.zeros(2))


def test_a_model_that_looks_ahead_is_refused():
    part = torch.zeros(1, 2, 3, 4)
    module: Any = torch.nn.Identity()
    module.is_causal = False
    with pytest.raises(ValueError, match="is not causal"):
        packed_attention(module, part, part, part, None, 1.0, length_groups=group_by_length([3]))


@pytest.mark.parametrize("is_eager", [False, True])
def test_attention_dropout_keeps_the_mean(is_eager):
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4), torch.ones(1, 2, 8, 4)
    module, groups = torch.nn.Identity(), group_by_length([8])
    actual = [
        packed_attention(module, query, key, value, None, 1.0, dropout=0.5, length_groups=groups, is_eager=is_eager)[0]
        for _ in range(400)
    ]

    assert not torch.equal(actual[0], actual[1])
    assert float(torch.stack(actual).mean()) == pytest.approx(1.0, abs=0.02)


def test_flash_attention_of_transformers_gets_the_sequence_bounds(monkeypatch, sequences, tmp_path):
    """By the names that it has for them, so that it need not look for them in the positions, layer by layer."""
    calls = []

    def flash(module, query, key, value, attention_mask, **given):
        calls.append(given)
        return packed_attention(module, query, key, value, attention_mask, **given)

    AttentionInterface.register("told_by_a_test", flash)
    monkeypatch.setitem(attention.REGISTERED_NAMES, "flash_attention_2", "told_by_a_test")
    engine = make_engine(model_folder(tmp_path, "qwen3"), attn_impl="flash_attention_2")
    micro = sequences.micro_batch([1, 0, 3], world().device)
    engine.logprobs([micro], 1.0)

    assert len(calls) == 2
    inputs = sequences.input_lengths_N[micro.rows_N]
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert calls[0][name].tolist() == [0, *np.cumsum(inputs).tolist()] and calls[0][name].dtype == torch.int32
    assert calls[0]["max_length_q"] == calls[0]["max_length_k"] == max(inputs)


def test_flex_attention_is_refused_with_attention_dropout(tmp_path):
    folder = model_folder(tmp_path, "qwen3")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"attention_dropout": 0.0', '"attention_dropout": 0.3'))
    with pytest.raises(ConfigError, match=r"^actor\.attn_impl: flex_attention.*actor\.disable_dropout=true"):
        make_engine(folder, attn_impl="flex_attention")
    make_engine(folder, attn_impl="flex_attention", disable_dropout=True)


def test_the_resolved_attention_is_logged_with_its_reason(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        make_engine(model_folder(tmp_path, "qwen3"), attn_impl="auto")
    assert "actor.attn_impl is sdpa: no GPU" in caplog.text


def test_micro_batches_do_not_change_the_sequences(sequences):
    before = copy.deepcopy(sequences)
    sequences.micro_batch(range(len(LENGTHS)), world().device).input_ids_T.fill_(0)

    assert (sequences.token_ids == before.token_ids).all()
