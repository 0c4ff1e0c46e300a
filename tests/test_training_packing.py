"""Packed sequences are what they are by themselves: the same log-probabilities, and the same gradients."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from areal_like.config.micro_batch import MicroBatchSpec
from areal_like.training.attention import Run, runs_of
from areal_like.training.engine import whole
from areal_like.training.micro_batches import cut
from areal_like.training.sequences import MicroBatch, Sequences
from tests.training_runs import make_engine, model_folder, section, world

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
    """Every token has a weight of its own, so that none may be taken for another."""
    return -(logprobs * micro.fields["weight"]).sum()


def gradient_of(parameter: torch.nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return whole(parameter.grad)


def one_by_one(folder, sequences: Sequences, temperature: float) -> tuple[dict[int, Tensor], dict[str, Tensor]]:
    """By transformers itself, one sequence after the other: log-probabilities of what counts, and gradients."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    found = {}
    for row, (start, length) in enumerate(zip(sequences.starts_N, LENGTHS, strict=True)):
        ids = torch.tensor(sequences.token_ids[start : start + length], dtype=torch.int64)
        logits = model(ids[None]).logits[0] / temperature
        logprobs = logits.log_softmax(-1)[:-1].gather(-1, ids[1:, None]).squeeze(-1)
        found[row] = logprobs[torch.tensor(sequences.counted[start + 1 : start + length])]
        (-(found[row] * torch.arange(1, len(found[row]) + 1)).sum()).backward()
    return found, {name: gradient_of(parameter) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", ["qwen3", "llama", "mistral"])
def test_packed_sequences_have_the_log_probabilities_and_gradients_of_each_by_itself(name, sequences, tmp_path):
    folder = model_folder(tmp_path, name)
    engine = make_engine(folder)
    expected, gradients = one_by_one(folder, sequences, temperature=0.7)
    sequences.fields["weight"] = np.concatenate(
        [np.cumsum(part) for part in np.split(sequences.counted.astype(np.float32), np.cumsum(LENGTHS)[:-1])]
    )

    micro = sequences.micro_batch(range(len(LENGTHS)), world().device)
    got = engine.logprobs([micro], temperature=0.7)[0]
    engine.accumulate([micro], loss, temperature=0.7)

    wanted = torch.cat([expected[int(row)] for row in micro.rows_N])
    assert len(micro.runs) < len(LENGTHS), "sequences of one length are computed together"
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
    for parameter_name, parameter in engine.causal.named_parameters():
        wanted = gradients[parameter_name]
        assert (gradient_of(parameter) - wanted).norm() <= 1e-5 * wanted.norm(), parameter_name


def test_the_cut_into_micro_batches_changes_no_gradient(sequences, tmp_path):
    folder = model_folder(tmp_path, "qwen3")
    sequences.fields["weight"] = np.linspace(0.5, 1.5, len(sequences.token_ids)).astype(np.float32)
    found = {}
    for name, spec in {
        "one": section(MicroBatchSpec, n_mbs=1),
        "three": section(MicroBatchSpec, n_mbs=3),
        "small": section(MicroBatchSpec, n_mbs=None, max_tokens_per_mb=12),
    }.items():
        engine = make_engine(folder)
        micros = cut(sequences, range(len(LENGTHS)), spec, "actor", world().device)
        total = engine.accumulate(micros, loss)
        found[name] = (len(micros), total, [gradient_of(parameter) for parameter in engine.parameters])

    assert [found[name][0] for name in ("one", "three")] == [1, 3] and found["small"][0] > 2
    for name in ("three", "small"):
        assert found[name][1] == pytest.approx(found["one"][1], rel=1e-6)
        torch.testing.assert_close(found[name][2], found["one"][2], atol=1e-5, rtol=1e-5)


def test_what_stands_behind_the_last_token_that_counts_is_not_computed():
    sequences = Sequences(np.arange(10, dtype=np.int32), np.array([0, 0, 1, 0, 0, 0, 1, 0, 1, 0]), np.array([5, 5]))

    micro = sequences.micro_batch([0, 1], world().device)

    assert micro.input_ids_T.tolist() == [0, 1, 5, 6, 7]
    assert micro.targets_P.tolist() == [2, 6, 8]
    assert micro.predicts_P.tolist() == [1, 2, 4]
    assert micro.counts_N == (1, 2)


def test_the_first_token_of_a_sequence_never_counts():
    sequences = Sequences(np.arange(6, dtype=np.int32), np.ones(6), np.array([2, 4]))

    assert sequences.counted.tolist() == [False, True, False, True, True, True]
    assert sequences.counts_N.tolist() == [1, 3]


def test_values_of_predicted_tokens_come_back_to_their_places():
    sequences = Sequences(np.arange(10, dtype=np.int32), np.array([0, 0, 1, 1, 0, 0, 1, 0, 0, 1]), np.array([6, 4]))
    micros = [sequences.micro_batch([row], world().device) for row in (1, 0)]

    placed = sequences.scatter(micros, [micro.targets_P * 10.0 for micro in micros])

    assert placed.tolist() == [0, 0, 20, 30, 0, 0, 0, 0, 0, 90]


def test_neighbours_of_one_length_are_one_run():
    assert runs_of([2, 2, 5, 7, 7, 7]) == (Run(0, 2, 2), Run(4, 1, 5), Run(9, 3, 7))
    assert runs_of([]) == ()


def test_a_model_that_changes_its_attention_scores_is_refused():
    from areal_like.training.attention import packed_attention

    part = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="softcap"):
        packed_attention(torch.nn.Identity(), part, part, part, None, 1.0, runs=runs_of([3]), softcap=50.0)


def test_micro_batches_do_not_change_the_sequences(sequences):
    before = copy.deepcopy(sequences)
    sequences.micro_batch(range(len(LENGTHS)), world().device).input_ids_T.fill_(0)

    assert (sequences.token_ids == before.token_ids).all()
