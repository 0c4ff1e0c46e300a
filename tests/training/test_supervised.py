"""Supervised fine-tuning: learning, bit-exact resume, and seeded row order."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from areal_like.config.problems import ConfigError
from areal_like.data.tokenizer import TextTokenizer
from areal_like.observe.observer import Observer
from areal_like.process.checkpoint_files import complete_checkpoints
from areal_like.process.errors import FinalFailure
from areal_like.process.run import Run
from areal_like.training import held_state
from areal_like.training.fake_data import FakeSupervisedData, FakeTokenDataset
from areal_like.training.main import load_trained_engine
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.stop import StopRequest
from areal_like.training.supervised import SupervisedLearner, train
from areal_like.training.supervised_data import SupervisedData, TokenDataset
from tests.support.chat_models import chat_folder
from tests.support.training_runs import ME, make_engine, make_run, metrics_of, model_folder, start_from, world

SETTINGS = (
    "train_dataset.batch_size=16",
    "evaluator.freq_steps=3",
    "evaluator.num_examples=40",
    "recover.freq_steps=3",
)


def train_in(run: Run, stop: StopRequest | None = None) -> int:
    learner = SupervisedLearner(load_trained_engine(run, run.config.model, "model", world()), run.config.seed)
    return train(run, ME, world(), learner, SupervisedData(run), stop or StopRequest(world()))


def first_rows(dataset: TokenDataset | FakeTokenDataset, count: int) -> Sequences:
    return next(iter(dataset.batches(count, most=count)))


class StopAfter(StopRequest):
    """Asked for after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__(world())
        self._left = steps

    def is_requested(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_supervised_training_learns_and_reports_progress(tmp_path):
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

    expected, got = (load_file(run.checkpoints / "step_000006" / "model.safetensors") for run in runs)
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())


@pytest.mark.shows("recover.hold_state")
@pytest.mark.parametrize(
    ("hold_state", "step_s", "is_held"),
    [("as_needed", 0.6, True), ("as_needed", 0.0, False), ("always", 0.0, True), ("never", 0.6, False)],
)
def test_a_step_that_outlasts_the_grace_time_is_abandoned_with_the_state_before_it(
    tmp_path, monkeypatch, hold_state, step_s, is_held
):
    """By itself only where steps take so long that twice as much is too long, as a copy costs too much here."""
    settings = ("total_train_steps=5", "recover.freq_steps=100", "recover.grace_s=1.5", "saver.freq_steps=null")
    never = ("evaluator.freq_steps=null", f"recover.hold_state={hold_state}")
    whole, parts = (make_run(tmp_path / name, "sft", *SETTINGS, *settings, *never) for name in ("whole", "parts"))
    assert train_in(whole) == 0

    stop, has_left, step = StopRequest(world()), threading.Event(), SupervisedLearner.step
    monkeypatch.setattr(held_state, "leave", has_left.set)
    monkeypatch.setattr(held_state, "CHEAP", 0.0)
    monkeypatch.setattr(held_state, "SLOWER", 2.0 if step_s else 0.0)  # a busy machine is no slow step

    def slow_step(self: SupervisedLearner, batch: Sequences, completed: int) -> dict[str, float]:
        metrics = step(self, batch, completed)
        time.sleep(step_s)
        if completed == 3:
            stop.request()
            assert has_left.wait(60 if is_held else 3) is is_held
            raise KeyboardInterrupt
        return metrics

    with monkeypatch.context() as patched:
        patched.setattr(SupervisedLearner, "step", slow_step)
        with pytest.raises(KeyboardInterrupt):
            train_in(parts, stop)
    assert [step for step, _ in complete_checkpoints(parts.checkpoints)] == [3] * is_held
    if not is_held:
        return

    start_from(parts, parts.checkpoints / "step_000003", 3)
    assert train_in(parts) == 0
    expected, got = (load_file(run.checkpoints / "step_000005" / "model.safetensors") for run in (whole, parts))
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())


def test_a_stop_request_leaves_a_checkpoint_to_resume_from(tmp_path):
    run = make_run(tmp_path / "run", "sft", *SETTINGS)
    stop = StopRequest(world())
    stop.request()

    assert train_in(run, stop) == 75
    assert (run.checkpoints / "step_000000" / "resume").is_dir()


def test_the_loss_counts_the_answer_and_its_end(tmp_path):
    run = make_run(tmp_path / "run", "sft", *SETTINGS)
    sequences = first_rows(SupervisedData(run).train, 50)

    assert set(sequences.lengths_N.tolist()) == {10} and set(sequences.loss_tokens_N.tolist()) == {4}
    assert sequences.token_ids[9] == 1 and sequences.loss_mask[:10].tolist() == [0] * 6 + [1] * 4


def test_loss_on_selects_the_tokens_in_the_loss(tmp_path):
    """With the tokens of the prompt except the first, which nothing predicts."""
    counts = {}
    for loss_on in ("answers", "all"):
        run = make_run(
            tmp_path / loss_on, "sft", *SETTINGS, "task.args={digits: 1}", f"train_dataset.loss_on={loss_on}"
        )
        data = SupervisedData(run)
        assert isinstance(data.valid, TokenDataset)
        counts[loss_on] = [set(first_rows(each, 9).loss_tokens_N.tolist()) for each in (data.train, data.valid)]
    assert counts == {"answers": [{3}, {3}], "all": [{6}, {6}]}


def test_supervised_training_learns_conversations(tmp_path):
    """By the template of the model's tokenizer, which goes with the model."""
    folder = chat_folder(tmp_path / "m")
    question = [{"role": "user", "content": "1+1"}]
    rows = [{"messages": [*question, {"role": "assistant", "content": str(answer)}]} for answer in range(9)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ("train_dataset.path=rows.jsonl", "task.name=null", "train_dataset.batch_size=9", "valid_dataset=null")
    epochs = ("total_train_steps=null", "total_train_epochs=12")
    run = make_run(tmp_path / "run", "sft", *own, *epochs, f"model.path={folder}")
    assert train_in(run) == 0

    losses = [line["train/loss"] for line in metrics_of(run)]
    assert losses[-1] < losses[0] - 1 and metrics_of(run)[0]["train/loss_tokens"] == 9 * 2
    saved = TextTokenizer(run.checkpoints / "step_000012")
    assert saved.encode_prompt(question) == TextTokenizer(folder).encode_prompt(question)
    assert json.loads((run.directory / "data.json").read_text())["train_dataset"]["has_messages"] is True


def test_other_data_than_at_the_checkpoint_is_refused(tmp_path):
    run = make_run(tmp_path / "run", "sft", *SETTINGS, "task.args={digits: 1}", "total_train_steps=9")
    assert train_in(run, StopAfter(3)) == 75
    checkpoint = run.checkpoints / "step_000003"
    (run.directory / "rows.jsonl").write_text('{"prompt": "1", "answer": "2"}\n' * 64)
    run.config.task.name, run.config.valid_dataset = None, None
    run.config.train_dataset.path = "rows.jsonl"
    data = SupervisedData(run)
    with pytest.raises(ConfigError, match=r"^train_dataset: the data has changed .*recover\.skip_dataloader=true"):
        data.resume(3, checkpoint, starts_over=False)
    data.resume(3, checkpoint, starts_over=True)
    assert data.epochs(3, data.length) == 0


@pytest.mark.parametrize(("key", "value"), [("shuffle", False), ("batch_size", 20), ("seed", 5)])
def test_with_another_order_or_as_many_other_batches_the_next_epoch_starts(tmp_path, key, value):
    """Of 40 rows, two batches of 16 or of 20: as many steps of an epoch."""
    rows = "".join(f'{{"prompt": "{number}+0=", "answer": "{number}"}}\n' for number in range(10, 50))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rows.jsonl").write_text(rows)
    run = make_run(tmp_path / "run", "sft", *SETTINGS, "train_dataset.path=rows.jsonl", "valid_dataset=null")
    first = SupervisedData(run)
    batches = first.batches(0)
    next(batches)
    resume = tmp_path / "checkpoint" / "resume"
    resume.mkdir(parents=True)
    for name, content in first.state(1).items():
        (resume / name).write_bytes(content)
    same, other = SupervisedData(run), run
    same.resume(1, resume.parent, starts_over=False)
    assert same.epochs(1, same.length) == 0.5
    setattr(other.config if key == "seed" else other.config.train_dataset, key, value)
    changed = SupervisedData(other)
    changed.resume(1, resume.parent, starts_over=False)
    assert changed.epochs(1, changed.length) == 1.0


def test_with_another_batch_size_the_next_epoch_starts(tmp_path):
    run = make_run(tmp_path / "run", "sft", *SETTINGS, "task.args={digits: 1}", "total_train_steps=9")
    assert train_in(run, StopAfter(6)) == 75, "two steps into the second epoch of four"
    run.config.train_dataset.batch_size = 39
    data = SupervisedData(run)
    data.resume(6, run.checkpoints / "step_000006", starts_over=False)
    assert (data.length.steps_per_epoch, data.epochs(6, data.length)) == (2, 2.0)


def test_the_number_of_steps_is_printed_before_the_first(tmp_path):
    """If epochs end the run, only the data has the number of steps."""
    run = rows_run(tmp_path, "total_train_epochs=10", "train_dataset.batch_size=11")
    totals: list[int] = []
    observer = Observer(run, on_total=totals.append)
    train_in(run, StopAfter(1))
    observer._poll()
    assert totals == [20]


@pytest.mark.parametrize(
    ("override", "steps"),
    [
        ("total_train_steps=7", 7),
        ("total_train_n_seqs=33", 3),
        ("total_train_epochs=1", 502),
        ("train_dataset.drop_last=false", 5030),
    ],
)
def test_the_first_limit_reached_ends_the_run(tmp_path, override, steps):
    run = make_run(tmp_path / "run", "sft", "total_train_steps=null", "train_dataset.batch_size=16", override)

    assert SupervisedData(run).length.total_steps == steps


def test_nothing_but_rows_that_are_too_long_is_refused(tmp_path):
    """Of few rows before the start."""
    run = rows_run(tmp_path / "few", "train_dataset.max_length=3")
    with pytest.raises(ConfigError, match=r"at most 3 tokens \(train_dataset\.max_length\)"):
        SupervisedData(run)
    run = make_run(tmp_path / "run", "sft", *SETTINGS, "train_dataset.max_length=9")
    with pytest.raises(FinalFailure, match=r"^train_dataset\.max_length: 8036 of 8036 rows .* 16 are needed; raise it"):
        next(SupervisedData(run).batches(0))


def test_the_loss_is_the_mean_over_all_tokens_that_count(tmp_path):
    """Not a mean of means: a long answer counts for more than a short one."""
    folder = model_folder(tmp_path, "qwen3")

    def loss(*lengths: int) -> float:
        ids = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        batch = Sequences(ids, ids > 0, np.array(lengths))
        return SupervisedLearner(make_engine(folder), seed=1).step(batch, 0)["train/loss"]

    assert loss(2, 10) == pytest.approx((loss(2) + 9 * loss(10)) / 10, rel=1e-6)


# Keys of the data loader

ROWS = 22


def rows_run(folder: Path, *overrides: str) -> Run:
    """22 rows for training and for evaluation, in batches of 4."""
    rows = "".join(f'{{"prompt": "{n}+{n}=", "answer": "{2 * n}"}}\n' for n in range(ROWS))
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text(rows)
    own = ("train_dataset.path=rows.jsonl", "valid_dataset.path=rows.jsonl", "task.name=null")
    small = ("train_dataset.batch_size=4", "evaluator.num_examples=-1", "total_train_steps=null")
    return make_run(folder, "sft", *own, *small, "total_train_epochs=1", "evaluator.freq_steps=2", *overrides)


@pytest.mark.shows("train_dataset.batch_size")
@pytest.mark.parametrize("size", [2, 11])
def test_batch_size_is_the_number_of_rows_per_step(tmp_path, size):
    data = SupervisedData(rows_run(tmp_path, f"train_dataset.batch_size={size}"))
    assert data.length.total_steps == ROWS // size
    assert len(next(data.batches(0)).sequences) == size


@pytest.mark.shows("train_dataset.shuffle")
def test_without_shuffle_rows_keep_their_order(tmp_path):
    orders = []
    for value in ("false", "true"):
        run = rows_run(tmp_path / value, f"train_dataset.shuffle={value}")
        orders.append(next(SupervisedData(run).batches(0)).sequences.token_ids.tolist())
        first = first_rows(SupervisedData(run).train, 4).token_ids.tolist()
    assert orders[0] == first != orders[1]


@pytest.mark.shows("train_dataset.drop_last")
@pytest.mark.parametrize(("value", "last"), [("true", 4), ("false", 2)])
def test_without_drop_last_an_epoch_ends_with_a_smaller_batch(tmp_path, value, last):
    data = SupervisedData(rows_run(tmp_path, f"train_dataset.drop_last={value}"))
    assert [len(batch.sequences) for batch in data.batches(0)] == [4] * 5 + [2] * (last == 2)


@pytest.mark.shows("valid_dataset.batch_size")
@pytest.mark.parametrize("size", [5, 8])
def test_batch_size_of_an_evaluation_is_the_number_of_rows_computed_at_a_time(tmp_path, monkeypatch, size):
    sizes: list[int] = []
    measure = SupervisedLearner.measure

    def counted(self: SupervisedLearner, micros: list[MicroBatch]) -> dict[str, float]:
        sizes.append(sum(len(micro.rows_N) for micro in micros))
        return measure(self, micros)

    monkeypatch.setattr(SupervisedLearner, "measure", counted)
    assert train_in(rows_run(tmp_path, f"valid_dataset.batch_size={size}", "total_train_steps=1")) == 0
    assert sizes == [size] * (ROWS // size) + [ROWS % size]


LOADER = {
    "train_dataset.num_workers": "3",
    "valid_dataset.num_workers": "3",
    "valid_dataset.shuffle": "false",
    "valid_dataset.drop_last": "false",
}


@pytest.fixture(scope="module")
def loader_runs(tmp_path_factory) -> dict[str, list[dict[str, float]]]:
    """Metrics of training and evaluation, with one of the keys set to another value than its default."""
    words = {key: f"{key}={value}" for key, value in LOADER.items()}
    usual = [f"{key}={'0' if value == '3' else 'true'}" for key, value in LOADER.items()]
    runs = {}
    for name, word in {"usual": "seed=1", "other seed": "seed=2", **words}.items():
        run = rows_run(tmp_path_factory.mktemp("loader"), *usual, "total_train_steps=2", "seed=1", word)
        assert train_in(run) == 0
        kept = ("step", "train/loss", "eval/loss", "eval/samples")
        runs[name] = [{key: line[key] for key in kept if key in line} for line in metrics_of(run)]
    return runs


@pytest.mark.xdist_group("loader-runs")
@pytest.mark.shows_no_effect("{key}")
@pytest.mark.parametrize("key", LOADER)
def test_keys_of_a_row_loader_that_does_not_exist_here_change_nothing(loader_runs, key):
    assert loader_runs[key] == loader_runs["usual"] != loader_runs["other seed"]
    assert {line["eval/samples"] for line in loader_runs[key] if "eval/samples" in line} == {ROWS}


@pytest.fixture
def is_pinned(monkeypatch) -> Callable[[Sequences, str], bool]:
    """Whether micro-batches are copied to a device from pinned memory. Works without the device: tensors stay where
    they are."""
    pinned: list[torch.Tensor] = []
    move = torch.Tensor.to

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.device("cuda") in args:
            assert kwargs == {"non_blocking": True}, "waits for all kernels on the device"
        dtypes = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype)]
        return move(tensor, dtypes[0]) if dtypes else tensor

    def is_pinned(sequences: Sequences, device: str) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "pin_memory", pin_memory)
            patch.setattr(torch.Tensor, "to", to)
            pinned.clear()
            micro = sequences.micro_batch([0, 1], torch.device(device))
        plain = replace(sequences, pin_memory=False).micro_batch([0, 1], torch.device("cpu"))
        assert torch.equal(micro.input_ids_T, plain.input_ids_T) and micro.cu_seqlens.dtype == plain.cu_seqlens.dtype
        return bool(pinned)

    return is_pinned


@pytest.mark.shows("{section}.pin_memory")
@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("section", ["train_dataset", "valid_dataset"])
@pytest.mark.parametrize("value", [False, True])
def test_pin_memory_pins_batches_that_are_copied_to_a_gpu(tmp_path, is_pinned, section, fake, value):
    words = [f"{name}_dataset.fake.batch_size=4" for name in ("train", "valid") if fake]
    run = rows_run(tmp_path, f"{section}.pin_memory={value}", "total_train_steps=1", *words)
    engine = load_trained_engine(run, run.config.model, "model", world())
    data = FakeSupervisedData(run.config, engine) if fake else SupervisedData(run)
    sets: dict[str, Any] = {"train_dataset": data.train, "valid_dataset": data.valid}
    chosen, (other,) = sets.pop(section), sets.values()
    assert is_pinned(first_rows(chosen, 2), "cuda") == value
    assert not is_pinned(first_rows(chosen, 2), "cpu")
    assert is_pinned(first_rows(other, 2), "cuda"), "by default"
