"""Reward models: both answers of a pair in one micro-batch, the same result for any split."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification

from areal_like.config.problems import ConfigError
from areal_like.config.sections.train_engine import MicroBatchSpec
from areal_like.data.row_tokenizer import TokenSequences, joined
from areal_like.training.engine import TrainEngine
from areal_like.training.main import load_trained_engine
from areal_like.training.preference_pairs import chosen_and_rejected, scoring_sequences
from areal_like.training.reward_model import RewardModelLearner
from areal_like.training.stop import StopRequest
from areal_like.training.supervised import train
from areal_like.training.supervised_data import SupervisedData
from tests.support.chat_models import chat_folder
from tests.support.training_runs import (
    ME,
    MODELS,
    make_engine,
    make_run,
    metrics_of,
    section,
    start_from,
    weights_of,
    world,
)
from tests.training.test_supervised import StopAfter

LENGTHS = (5, 3, 2, 9, 7, 7, 4, 12)
"""Of four pairs, one after the other."""


def pairs() -> TokenSequences:
    ids = np.random.default_rng(2).integers(0, 40, sum(LENGTHS)).astype(np.int32)
    return TokenSequences(ids, np.zeros(len(ids), np.bool_), np.array(LENGTHS))


def texts() -> list[torch.Tensor]:
    return list(torch.from_numpy(pairs().token_ids).long().split(LENGTHS))


def ranker_folder(root: Path) -> Path:
    """A model whose head tells texts apart from the beginning."""
    torch.manual_seed(4)
    described = deepcopy(MODELS["qwen3"])
    described.num_labels = 1
    model: Any = AutoModelForSequenceClassification.from_config(described)
    model.save_pretrained(root / "ranker")
    return root / "ranker"


def ranker(folder: Path, **settings: Any) -> TrainEngine:
    return make_engine(folder, is_critic=True, **settings)


def test_a_text_is_scored_at_its_last_token():
    actual = scoring_sequences(TokenSequences(np.arange(5, dtype=np.int32), np.zeros(5, np.bool_), np.array([2, 3])))
    assert actual.lengths_N.tolist() == [3, 4] and actual.input_lengths_N.tolist() == [2, 3]
    assert np.flatnonzero(actual.target_mask).tolist() == [2, 6]


def test_pairs_are_matched_in_a_micro_batch_sorted_by_length():
    batch = scoring_sequences(pairs())
    micro = batch.micro_batch([0, 1, 2, 3, 6, 7], torch.device("cpu"))
    assert micro.rows_N.tolist() == [2, 1, 6, 0, 3, 7]
    assert [part.tolist() for part in chosen_and_rejected(micro)] == [[0, 2, 3], [4, 5, 1]]


def test_the_loss_is_that_of_the_scores_that_transformers_gives(tmp_path):
    folder = ranker_folder(tmp_path)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        scores = [model(text[None]).logits[0, 0] for text in texts()]
    margins = torch.stack(scores[::2]) - torch.stack(scores[1::2])
    metrics = RewardModelLearner(ranker(folder), seed=1).step(scoring_sequences(pairs()), 0)

    assert metrics["train/loss"] == pytest.approx(-logsigmoid(margins).mean().item(), rel=1e-5)
    assert metrics["train/margin"] == pytest.approx(margins.mean().item(), rel=1e-4)
    assert metrics["train/accuracy"] == (margins > 0).double().mean().item()
    assert (metrics["train/samples"], metrics["train/tokens"]) == (8, sum(LENGTHS))


@pytest.mark.parametrize("spec", [{"n_mbs": 3}, {"n_mbs": 4, "granularity": 2}, {"max_tokens_per_mb": 17}])
def test_any_split_of_pairs_into_micro_batches_gives_the_same_step(tmp_path, spec):
    folder = ranker_folder(tmp_path)
    whole, cut = ranker(folder), ranker(folder, mb_spec=section(MicroBatchSpec, **spec))
    batch = scoring_sequences(pairs())
    one, other = (RewardModelLearner(engine, seed=1).step(batch, 0) for engine in (whole, cut))

    assert len(RewardModelLearner(cut, seed=1).micro_batches(batch)) > 1
    assert other == pytest.approx(one, rel=1e-4)
    expected = weights_of(whole)
    assert all(torch.allclose(tensor, expected[name], atol=1e-5) for name, tensor in weights_of(cut).items())


def test_an_evaluation_covers_all_pairs_with_any_batch_size(tmp_path):
    learner, all_pairs = RewardModelLearner(ranker(ranker_folder(tmp_path)), seed=1), pairs().split(2)
    cuts = [all_pairs], [all_pairs[:3], all_pairs[3:]]
    one, other = (learner.evaluate(scoring_sequences(joined(part)) for part in cut) for cut in cuts)

    assert one == pytest.approx(other, rel=1e-6) and one["eval/samples"] == 4
    assert set(one) == {"eval/loss", "eval/accuracy", "eval/margin", "eval/samples"}


SETTINGS = (
    *("train_dataset.batch_size=8", "evaluator.freq_steps=2", "evaluator.num_examples=20", "recover.freq_steps=2"),
    "task.args={digits: 1}",
)


def train_in(run: Any, stop: StopRequest | None = None) -> int:
    learner = RewardModelLearner(load_trained_engine(run, run.config.model, "model", world()), run.config.seed)
    return train(run, ME, world(), learner, SupervisedData(run), stop or StopRequest(world()))


def test_the_saved_folder_scores_texts_as_training_did(tmp_path):
    run = make_run(tmp_path / "run", "reward_model", *SETTINGS, "total_train_steps=4")
    assert train_in(run) == 0
    actual = [line for line in metrics_of(run) if "eval/loss" in line]
    assert [line["step"] for line in actual] == [2, 4] and all("eval/accuracy" in line for line in actual)

    model: Any = AutoModelForSequenceClassification.from_pretrained(run.checkpoints / "step_000004").eval()
    held_out = SupervisedData(run).valid
    assert held_out is not None
    [batch] = held_out.batches(20, most=20)
    assert len(batch) == 2 * 20
    ids = torch.from_numpy(batch.token_ids).long().split(batch.lengths_N.tolist())
    with torch.no_grad():
        scores = torch.stack([model(text[None, :-1]).logits[0, 0] for text in ids])
    margins = scores[::2] - scores[1::2]
    assert actual[-1]["eval/margin"] == pytest.approx(margins.mean().item(), rel=1e-3)
    assert actual[-1]["eval/accuracy"] == (margins > 0).double().mean().item()


def test_four_steps_are_two_and_two_resumed_bit_for_bit(tmp_path):
    whole, parts = (make_run(tmp_path / name, "reward_model", *SETTINGS, "total_train_steps=4") for name in "ab")
    assert train_in(whole) == 0
    assert train_in(parts, StopAfter(2)) == 75
    start_from(parts, parts.checkpoints / "step_000002", 2)
    assert train_in(parts) == 0

    one, other = (load_file(run.checkpoints / "step_000004" / "model.safetensors") for run in (whole, parts))
    assert one["score.weight"].abs().sum() > 0
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_adapters_train_on_pairs(tmp_path):
    words = ("model.use_lora=true", "model.lora_rank=4", "model.lr=0.01")
    run = make_run(tmp_path / "run", "reward_model", *SETTINGS, *words, "total_train_steps=8", "valid_dataset=null")
    assert train_in(run) == 0
    losses = [line["train/loss"] for line in metrics_of(run)]
    assert losses[0] == pytest.approx(np.log(2), abs=1e-6) and min(losses[4:]) < losses[0]


def test_an_empty_text_cannot_be_scored(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rows.jsonl").write_text('{"prompt": "", "chosen": "1", "rejected": ""}\n')
    folder = chat_folder(tmp_path / "m")
    words = ("train_dataset.path=rows.jsonl", "task.name=null", "train_dataset.batch_size=1", "valid_dataset=null")
    run = make_run(tmp_path / "run", "reward_model", *words, f"model.path={folder}")
    assert len(next(SupervisedData(run).batches(0)).sequences) == 2, "its end is a token"

    file = folder / "tokenizer_config.json"
    file.write_text(file.read_text().replace('"eos_token"', '"no_token"'))
    with pytest.raises(ConfigError, match=r"^train_dataset\.path: .*rows\.jsonl:1: a text has no tokens"):
        SupervisedData(run)
