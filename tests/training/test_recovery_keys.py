"""Effects of the keys of recovery and saver: what checkpoints keep, and what a resume skips."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from areal_like.process.checkpoint_files import can_resume, complete_checkpoints, folder_name, write_manifest
from areal_like.process.errors import TimedOut
from areal_like.process.hashed_files import FilePart
from areal_like.process.run import Run
from areal_like.training import checkpoint as checkpoint_module
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.checkpoint_content import CheckpointPurpose
from areal_like.training.main import load_trained_engine
from areal_like.training.progress import TrainingProgress
from areal_like.training.rank_vote import RankVote
from areal_like.training.supervised import SupervisedLearner, train
from areal_like.training.supervised_data import SupervisedData
from launcher.supervisor.checkpoint_search import CheckpointSearch
from launcher.supervisor.rollback import roll_back
from tests.support.training_runs import ME, make_engine, make_run, metrics_of, model_folder, start_from, world
from tests.training.test_loop import SECRET, SETTINGS, serve
from tests.training.test_loop import train_in as train_rl
from tests.training.test_supervised import StopAfter

BEGUN = 7
"""Completed steps of the run that is gone on with; an epoch has 5."""
ROWS = "".join(f'{{"prompt": "{number}+{number}=", "answer": "{2 * number}"}}\n' for number in range(40))
FALLING = (
    *("model.optimizer.lr=0.001", "model.optimizer.lr_scheduler_type=linear", "model.optimizer.min_lr_ratio=0"),
    *("model.optimizer.warmup_steps=0", "total_train_steps=20", "total_train_epochs=9"),
)
"""The learning rate tells how far the schedule is: 0.001 at its beginning, a twentieth of it less with each step."""


class ObservedTraining:
    """The steps, batches and samples of a training, from its first step."""

    def __init__(self, run: Run, steps: int) -> None:
        learner = SupervisedLearner(load_trained_engine(run, run.config.model, "model", world()), run.config.seed)
        self.data, self.first = SupervisedData(run), run.start_point().step
        before = len(metrics_of(run)) if (run.metrics / "trainer-0.jsonl").is_file() else 0
        self.weights = {name: tensor.clone() for name, tensor in learner.engine.export_weights()}
        train(run, ME, world(), learner, self.data, StopAfter(steps))
        self.lines = [line for line in metrics_of(run)[before:] if "train/lr" in line]
        self.checkpoint = run.checkpoints / folder_name(self.steps[-1])

    @property
    def steps(self) -> list[int]:
        return [line["step"] for line in self.lines]

    @property
    def schedule(self) -> list[int]:
        """How many steps the schedule had made before each."""
        return [round(20 * (1 - line["train/lr"] / 0.001)) for line in self.lines]

    @property
    def batches(self) -> int:
        """Batches drawn before the first step."""
        return round(self.data.epochs(self.first, self.data.length) * self.data.length.steps_per_epoch)

    @property
    def samples(self) -> int:
        facts = json.loads((self.checkpoint / "resume" / "trainer.json").read_text())
        return int(facts["progress"]["samples"])


def begun(root: Path, *overrides: str) -> tuple[Run, ObservedTraining]:
    root.mkdir(parents=True, exist_ok=True)
    (root / "rows.jsonl").write_text(ROWS)
    own = ("train_dataset.path=rows.jsonl", "task.name=null", "train_dataset.batch_size=8", "valid_dataset=null")
    run = make_run(root, "sft", *own, *FALLING, "recover.freq_steps=null", *overrides)
    return run, ObservedTraining(run, BEGUN)


def resume(run: Run, attempt: int = 2, began: int = 2) -> ObservedTraining:
    """As the launcher lets it, which may have moved the checkpoint."""
    search = CheckpointSearch(run)
    assert search.is_done(60)
    roll_back(run, attempt, began, search.result())
    return ObservedTraining(run, 2)


def test_state_that_is_not_skipped_is_resumed(tmp_path):
    run, _ = begun(tmp_path)
    seen = resume(run)

    assert (seen.steps, seen.schedule) == ([8, 9], [7, 8])
    assert (seen.batches, seen.samples) == (7, 9 * 8)


@pytest.mark.shows("recover.skip_progress")
def test_skip_progress_restarts_the_count_of_steps_only(tmp_path):
    run, first = begun(tmp_path, "recover.skip_progress=true", "recover.freq_steps=2")
    seen = resume(run)

    assert (seen.steps, seen.schedule) == ([1, 2], [7, 8])
    assert (seen.batches, seen.samples) == (7, 2 * 8)
    expected = load_file(run.checkpoints / "before-attempt-2" / first.checkpoint.name / "model.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in seen.weights.items())


@pytest.mark.shows("recover.skip_scheduler")
def test_skip_scheduler_restarts_the_schedule_only(tmp_path):
    run, _ = begun(tmp_path, "recover.skip_scheduler=true")
    seen = resume(run)

    assert (seen.steps, seen.schedule) == ([8, 9], [0, 1])
    assert (seen.batches, seen.samples) == (7, 9 * 8)


@pytest.mark.shows("recover.skip_dataloader")
def test_skip_dataloader_restarts_the_data_only(tmp_path):
    run, first = begun(tmp_path, "recover.skip_dataloader=true")
    seen = resume(run)

    assert (seen.steps, seen.schedule) == ([8, 9], [7, 8])
    assert (seen.batches, seen.samples) == (0, 9 * 8)
    again, before = seen.data.batch_sampler, first.data.batch_sampler
    assert again.unknown(BEGUN) == before.unknown(0) == []
    assert np.array_equal(again.rows(BEGUN), before.rows(0))


def test_a_recovery_does_not_skip_what_its_command_skipped(tmp_path):
    skips = [f"recover.skip_{what}=true" for what in ("progress", "scheduler", "dataloader")]
    run, _ = begun(tmp_path, *skips)
    second = resume(run)
    assert (second.steps, second.schedule, second.batches) == ([1, 2], [0, 1], 0)

    third = resume(run, attempt=3, began=2)
    assert (third.steps, third.schedule, third.batches, third.samples) == ([3, 4], [2, 3], 2, 4 * 8)


def test_skips_hold_for_reinforcement_learning_too(tmp_path, monkeypatch):
    monkeypatch.setenv("AREAL_LIKE_TOKEN", SECRET)
    folder = model_folder(tmp_path, "qwen3")
    skips = ("recover.skip_progress=true", "recover.skip_scheduler=true", "actor.optimizer.lr_scheduler_type=linear")
    run = make_run(tmp_path / "run", "grpo", *SETTINGS, f"actor.path={folder}", *skips)
    with serve(run, total_steps=6, stop_at=4):
        assert train_rl(run) == 75
    checkpoint = run.checkpoints / "step_000004"
    trained = load_file(checkpoint / "model.safetensors")
    start_from(run, checkpoint, 0, attempt=2)
    with serve(run, total_steps=2) as controller:
        assert train_rl(run) == 0

    assert [body["version"] for body in controller.requests_to("/publish")] == [0, 1, 2]
    published = controller.published[0].tensors
    assert all(torch.equal(published[name].float(), tensor.float()) for name, tensor in trained.items())
    rates = [line["train/lr"] for line in metrics_of(run)]
    assert rates[4] == rates[0] > rates[1], "the schedule restarted"


@pytest.mark.shows("recover.keep")
@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("1", {2: False, 8: True}),
        ("3", {2: False, 4: True, 6: True, 8: True}),
        ("null", dict.fromkeys((2, 4, 6, 8), True)),
    ],
)
def test_keep_limits_resumable_checkpoints_beside_the_savers(tmp_path, keep, expected):
    run = make_run(tmp_path / "run", "sft", f"model.path={model_folder(tmp_path, 'llama')}", f"recover.keep={keep}")
    engine = make_engine(Path(run.config.model.path))
    for step in (2, 4, 6, 8):
        checkpoints = CheckpointManager(run, world(), 100)
        checkpoints.write(
            step, CheckpointPurpose(True, to_keep=step == 2), {"model": engine}, TrainingProgress(run, ME, world())
        )
        checkpoints.wait()

    assert {step: can_resume(folder) for step, folder in complete_checkpoints(run.checkpoints)} == expected


@pytest.mark.shows("weights.save_async")
@pytest.mark.parametrize("is_async", [True, False])
def test_save_async_writes_a_checkpoint_during_training(tmp_path, monkeypatch, is_async):
    word = f"weights.save_async={str(is_async).lower()}"
    run = make_run(tmp_path / "run", "sft", f"model.path={model_folder(tmp_path, 'llama')}", word)
    engine, order = make_engine(Path(run.config.model.path)), []
    goes_on_first = threading.Event()

    def slow(folder: Path, step: int, written: Mapping[str, FilePart]) -> None:
        goes_on_first.wait(10 if is_async else 0.2)
        write_manifest(folder, step, written)
        order.append("written")

    monkeypatch.setattr(checkpoint_module, "write_manifest", slow)
    checkpoints = CheckpointManager(run, world(), 100)
    checkpoints.write(1, CheckpointPurpose(True, True), {"model": engine}, TrainingProgress(run, ME, world()))
    order.append("training")
    goes_on_first.set()
    checkpoints.wait()
    assert order == (["training", "written"] if is_async else ["written", "training"])


def test_ranks_wait_on_the_cpu_while_the_first_one_writes_a_checkpoint(tmp_path, monkeypatch):
    """In the next collective on GPUs the watchdog would end them."""
    words = f"model.path={model_folder(tmp_path, 'llama')}", "weights.save_async=false", "model.dist_timeout_s=1"
    run, goes_on, votes = make_run(tmp_path / "run", "sft", *words), threading.Event(), list[int]()

    def slow(folder: Path, step: int, written: Mapping[str, FilePart]) -> None:
        assert goes_on.wait(60)
        write_manifest(folder, step, written)

    def vote(ranks: RankVote, number: int, what: str) -> int:
        if what == "whether it waits for a checkpoint to be written":
            votes.append(number)
            if len(votes) == 4:
                goes_on.set()
        return number

    monkeypatch.setattr(checkpoint_module, "write_manifest", slow)
    monkeypatch.setattr(RankVote, "sum", vote)
    checkpoints, engine = CheckpointManager(run, world(), 100), make_engine(Path(run.config.model.path))
    checkpoints.write(1, CheckpointPurpose(True, True), {"model": engine}, TrainingProgress(run, ME, world()))
    assert votes[:4] == [0, 1, 1, 1] and votes[-1] == 0, "none before it, then until it is written"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_checkpoint_that_is_never_complete_ends_the_run(tmp_path, monkeypatch, is_async):
    """A disk that hangs under the first rank, during training or after the last step."""
    words = f"weights.save_async={is_async}", "model.dist_timeout_s=1"
    path, goes_on = f"model.path={model_folder(tmp_path, 'llama')}", threading.Event()
    run = make_run(tmp_path / "run", "sft", path, *words)
    monkeypatch.setattr(checkpoint_module, "write_manifest", lambda *_: goes_on.wait(20))
    monkeypatch.setattr(checkpoint_module, "WRITE_TIMEOUTS", 0.2)
    monkeypatch.setattr(checkpoint_module, "CHECK_INTERVAL_S", 0.05)
    checkpoints, engine = CheckpointManager(run, world(), 100), make_engine(Path(run.config.model.path))
    try:
        with pytest.raises(TimedOut, match=r"^model\.dist_timeout_s: waited .* a checkpoint to be written"):
            checkpoints.write(1, CheckpointPurpose(True, True), {"model": engine}, TrainingProgress(run, ME, world()))
            checkpoints.wait()
    finally:
        goes_on.set()


def test_a_rank_whose_part_failed_does_not_wait_for_the_others(tmp_path, monkeypatch):
    def vote(ranks: RankVote, number: int, what: str) -> int:
        if what == "that it wrote its part of a checkpoint":
            raise TimedOut("another rank did not report")
        votes.append(number)
        return 0 if len(votes) == 1 or len(votes) > 200 else 1

    votes = list[int]()
    monkeypatch.setattr(RankVote, "sum", vote)
    words = f"model.path={model_folder(tmp_path, 'llama')}", "weights.save_async=false"
    run = make_run(tmp_path / "run", "sft", *words)
    checkpoints, engine = CheckpointManager(run, world(), 100), make_engine(Path(run.config.model.path))
    with pytest.raises(TimedOut, match="another rank did not report"):
        checkpoints.write(1, CheckpointPurpose(True, True), {"model": engine}, TrainingProgress(run, ME, world()))
    assert len(votes) < 200
