"""Supervised fine-tuning: it learns, it resumes bit for bit, and it deals rows as the seed says."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from areal_like.config.problems import ConfigError
from areal_like.process.run import Run
from areal_like.training.engine import Engine
from areal_like.training.main import load_trained
from areal_like.training.sequences import Sequences
from areal_like.training.stop import StopRequest
from areal_like.training.supervised import Supervised, train
from areal_like.training.supervised_data import Deal, SupervisedData
from tests.training_runs import ME, make_engine, make_run, metrics_of, model_folder, start_from, world

SETTINGS = (
    "train_dataset.batch_size=16",
    "evaluator.freq_steps=3",
    "evaluator.num_examples=40",
    "recover.freq_steps=3",
)


def train_in(run: Run, stop: StopRequest | None = None) -> int:
    engine = load_trained(run, run.config.model, "model", world())
    return train(run, ME, world(), engine, SupervisedData(run), stop or StopRequest(world()))


class StopAfter(StopRequest):
    """Asked for after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__(world())
        self._left = steps

    def was_asked_for(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_it_learns_and_says_how_far_it_is(tmp_path):
    run = make_run(tmp_path / "run", "sft", *SETTINGS, "total_train_steps=12", "train_dataset.batch_size=64")

    assert train_in(run) == 0

    lines = metrics_of(run)
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    evaluations = {line["step"]: line["eval/loss"] for line in lines if "eval/loss" in line}
    assert len(losses) == 12 and losses[-1] < losses[0] - 1
    assert sorted(evaluations) == [3, 6, 9, 12] and evaluations[12] < evaluations[3]
    assert AutoModelForCausalLM.from_pretrained(run.checkpoints / "step_000012").config.vocab_size == 64


def test_six_steps_are_three_and_three_resumed_bit_for_bit(tmp_path):
    """Through the end of an epoch, with a learning rate that falls."""
    settings = (
        *SETTINGS,
        "total_train_steps=6",
        "train_dataset.path=rows.jsonl",
        "task.name=null",
        "valid_dataset=null",
    )
    rows = "".join(f'{{"prompt": "{n}+{n}=", "answer": "{2 * n}"}}\n' for n in range(70))
    runs = []
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text(rows)
        runs.append(make_run(tmp_path / name, "sft", *settings))
    whole, parts = runs
    assert train_in(whole) == 0

    assert train_in(parts, StopAfter(3)) == 75
    start_from(parts, parts.checkpoints / "step_000003", 3)
    assert train_in(parts) == 0

    wanted, got = (load_file(run.checkpoints / "step_000006" / "model.safetensors") for run in runs)
    assert all(torch.equal(got[name], tensor) for name, tensor in wanted.items())


def test_a_request_to_stop_leaves_a_checkpoint_to_go_on_from(tmp_path):
    run = make_run(tmp_path / "run", "sft", *SETTINGS)
    stop = StopRequest(world())
    stop.ask()

    assert train_in(run, stop) == 75
    assert (run.checkpoints / "step_000000" / "resume").is_dir()


def test_every_epoch_deals_every_row_once_in_an_order_of_its_own():
    deal = Deal(num_rows=10, batch_size=4, shuffle=True, drop_last=False, seed=3)
    epochs = [np.concatenate([deal.rows(3 * epoch + step) for step in range(3)]) for epoch in range(2)]

    assert deal.steps_per_epoch == 3
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()
    assert Deal(10, 4, True, False, seed=4).rows(0).tolist() != deal.rows(0).tolist()
    assert Deal(10, 4, True, False, seed=3).rows(0).tolist() == deal.rows(0).tolist()


def test_a_last_batch_that_is_not_full_is_left_out_where_that_is_asked_for():
    assert Deal(10, 4, shuffle=False, drop_last=True, seed=1).steps_per_epoch == 2
    assert Deal(10, 4, shuffle=False, drop_last=True, seed=1).rows(2).tolist() == [0, 1, 2, 3]
    assert Deal(10, 4, shuffle=False, drop_last=False, seed=1).rows(2).tolist() == [8, 9]


def test_the_loss_counts_the_answer_and_its_end(tmp_path):
    run = make_run(tmp_path / "run", "sft", *SETTINGS)
    sequences = SupervisedData(run).train

    assert set(sequences.lengths_N.tolist()) == {10} and set(sequences.counts_N.tolist()) == {4}
    assert sequences.token_ids[9] == 1 and sequences.loss_mask[:10].tolist() == [0] * 6 + [1] * 4


@pytest.mark.parametrize(
    ("override", "steps"),
    [
        ("total_train_steps=7", 7),
        ("total_train_n_seqs=33", 3),
        ("total_train_epochs=1", 502),
        ("train_dataset.drop_last=false", 5030),
    ],
)
def test_whatever_limit_comes_first_ends_the_run(tmp_path, override, steps):
    run = make_run(tmp_path / "run", "sft", "total_train_steps=null", "train_dataset.batch_size=16", override)

    assert SupervisedData(run).total_steps == steps


def test_rows_that_are_too_long_are_left_out_and_nothing_left_is_refused(tmp_path):
    run = make_run(tmp_path / "run", "sft", *SETTINGS)
    run.config.train_dataset.max_length = 9
    with pytest.raises(ConfigError, match=r"train_dataset\.max_length"):
        SupervisedData(run)


def step_of(engine: Engine, sequences: Sequences, rows: list[int]) -> dict[str, float]:
    return Supervised(engine, seed=1).step(sequences, np.array(rows), 0)


def test_the_loss_is_the_mean_over_all_tokens_that_count(tmp_path):
    """Not a mean of means: a long answer counts for more than a short one."""
    folder = model_folder(tmp_path, "qwen3")
    ids = np.arange(12, dtype=np.int32)
    sequences = Sequences(ids, np.array([0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]), np.array([2, 10]))
    found = {
        name: step_of(make_engine(folder), sequences, rows)["train/loss"]
        for name, rows in {"short": [0], "long": [1], "both": [0, 1]}.items()
    }

    assert found["both"] == pytest.approx((found["short"] + 9 * found["long"]) / 10, rel=1e-6)
