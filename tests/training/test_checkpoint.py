"""Checkpoints are restored bit for bit, damage is reported, and old ones are deleted as configured."""

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal_like.config.sections.checkpoints import BestConfig
from areal_like.process import checkpoint_files
from areal_like.process.checkpoint_files import (
    KEPT,
    can_resume,
    checkpoint_problems,
    complete_checkpoints,
    folder_name,
    step_of,
)
from areal_like.process.errors import Failure
from areal_like.process.hashed_files import FilePart
from areal_like.process.run import Run
from areal_like.training import checkpoint as checkpoint_module
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.checkpoint_check import check_complete
from areal_like.training.checkpoint_content import CheckpointPurpose
from areal_like.training.checkpoint_removal import discard
from areal_like.training.engine import TrainEngine
from areal_like.training.engine_snapshot import EngineSnapshot
from areal_like.training.progress import TrainingProgress
from areal_like.training.rank_vote import RankVote
from areal_like.training.sequences import Sequences
from launcher.supervisor.checkpoint_search import CheckpointSearch
from tests.support.training_runs import ME, make_engine, make_run, model_folder, start_from, weights_of, world


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(
        tmp_path / "run", "sft", "model.path=" + str(model_folder(tmp_path, "llama")), "recover.freq_steps=2"
    )


def learn(engine: TrainEngine, completed: int) -> None:
    """An update on random tokens, others in each step."""
    draw = np.random.default_rng(completed)
    sequences = Sequences(draw.integers(0, 40, 24).astype(np.int32), np.ones(24), np.array([8, 8, 8]))
    micro = sequences.micro_batch([0, 1, 2], world().device)
    engine.step(completed, engine.accumulate([micro], lambda micro, actual, entropy: -actual.mean()))


def written(
    run: Run, engine: TrainEngine, step: int, to_keep: bool = False, to_resume: bool = True, **others: TrainEngine
) -> Path:
    checkpoints, progress = CheckpointManager(run, world(), 100), TrainingProgress(run, ME, world())
    progress.samples = 77
    engines = {"actor": engine, **others}
    checkpoints.write(step, CheckpointPurpose(to_resume, to_keep), engines, progress, {"controller.frame": b"groups"})
    checkpoints.wait()
    return run.checkpoints / folder_name(step)


def resumed(run: Run, folder: Path, **engines: TrainEngine) -> TrainingProgress:
    """The run begins where the checkpoint stood."""
    start_from(run, folder, step_of(folder.name) or 0, attempt=2)
    progress = TrainingProgress(run, ME, world())
    CheckpointManager(run, world(), 100).resume(engines, progress)
    return progress


def alone() -> RankVote:
    return RankVote(world(), 60, "actor.dist_timeout_s")


SETTINGS = {
    "adam": {},
    "sgd": {"type": "sgd"},
    "adam_bf16": {"type": "adam_bf16"},
    "muon": {"type": "muon"},
    "bfloat16 with float32 masters": {"dtype": "bfloat16"},
    "bfloat16 alone": {"dtype": "bfloat16", "master_dtype": "bfloat16", "type": "adam_bf16"},
    "float16 with a loss scale": {"dtype": "float16", "initial_loss_scale": 2.0**12, "loss_scale_window": 2},
    "an adapter": {"use_lora": True, "lora_rank": 2},
    "an adapter in bfloat16": {"use_lora": True, "lora_rank": 2, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_resumed_engine_equals_one_that_never_stopped(run, settings):
    engine = make_engine(Path(run.config.model.path), **settings)
    for completed in range(3):
        learn(engine, completed)
    folder = written(run, engine, 3)
    for completed in range(3, 6):
        learn(engine, completed)

    check_complete(folder, alone())
    again = make_engine(engine.folder, folder, **settings)
    progress = resumed(run, folder, actor=again)
    for completed in range(3, 6):
        learn(again, completed)

    expected = weights_of(engine)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(again).items())
    assert again.scale.state() == engine.scale.state()
    assert progress.samples == 77
    assert {file.suffix for file in (folder / "resume").rglob("*.*")} == {".safetensors", ".json", ".frame"}


def test_several_engines_are_in_one_checkpoint(run):
    engines = {
        "actor": make_engine(Path(run.config.model.path)),
        "critic": make_engine(Path(run.config.model.path), is_critic=True, type="sgd", momentum=0.9),
    }
    for completed in range(2):
        for engine in engines.values():
            learn(engine, completed)
    folder = written(run, engines["actor"], 2, critic=engines["critic"])

    again = {
        "actor": make_engine(engines["actor"].folder, folder),
        "critic": make_engine(engines["actor"].folder, folder / "critic", is_critic=True, type="sgd", momentum=0.9),
    }
    resumed(run, folder, **again)
    for name, engine in engines.items():
        learn(engine, 2)
        learn(again[name], 2)
        expected = weights_of(engine)
        assert all(torch.equal(tensor, expected[key]) for key, tensor in weights_of(again[name]).items())
    critic: Any = AutoModelForSequenceClassification.from_pretrained(folder / "critic")
    assert critic.score.weight.abs().sum() > 0
    check_complete(folder, alone())


def test_a_checkpoint_is_a_folder_that_transformers_loads(run):
    engine = make_engine(Path(run.config.model.path))
    learn(engine, 0)
    folder = written(run, engine, 1)

    both: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    loaded, actual = both
    assert not actual["missing_keys"] and not actual["unexpected_keys"]
    ids = torch.arange(9)[None]
    logprobs = loaded(ids).logits[0].log_softmax(-1)[:-1].gather(-1, ids[0, 1:, None]).squeeze(-1)
    micro = Sequences(np.arange(9, dtype=np.int32), np.ones(9), np.array([9])).micro_batch([0], world().device)
    torch.testing.assert_close(engine.logprobs([micro], 1.0)[0], logprobs, atol=1e-5, rtol=0)
    assert (folder / "generation_config.json").is_file()


STATE = "resume/actor/shard-00001-model-00001-of-00001.safetensors"


@pytest.mark.parametrize("part", ["model.safetensors", STATE, "resume/controller.frame"])
@pytest.mark.parametrize("how", ["changed", "cut", "missing"])
def test_a_damaged_file_is_detected_and_named(run, part, how):
    engine = make_engine(Path(run.config.model.path))
    learn(engine, 1)
    folder = written(run, engine, 2)
    assert checkpoint_files.checkpoint_problems(folder) == [] and checkpoint_files.can_resume(folder)
    file, content = folder / part, bytearray((folder / part).read_bytes())
    if how == "changed":
        content[-1] ^= 1
        file.write_bytes(content)
    elif how == "cut":
        file.write_bytes(content[:-1])
    else:
        file.unlink()

    assert (
        len(checkpoint_files.checkpoint_problems(folder)) == 1
        and part in checkpoint_files.checkpoint_problems(folder)[0]
    )
    with pytest.raises(Failure, match=part):
        check_complete(folder, alone())


def test_a_checkpoint_without_its_mark_is_ignored(run):
    folder = written(run, make_engine(Path(run.config.model.path)), 2)
    (folder / ".complete").unlink()

    assert checkpoint_files.checkpoint_problems(folder) and not checkpoint_files.can_resume(folder)
    assert complete_checkpoints(run.checkpoints) == []


def test_the_newest_keep_resume_state_and_saved_ones_their_weights(run):
    engine = make_engine(Path(run.config.model.path))
    for step, to_keep in [(2, False), (4, True), (6, False), (8, False)]:
        written(run, engine, step, to_keep)

    actual = {step: checkpoint_files.can_resume(folder) for step, folder in complete_checkpoints(run.checkpoints)}
    assert actual == {8: True, 6: True, 4: False}
    kept = run.checkpoints / "step_000004"
    assert not (kept / "resume").exists() and checkpoint_files.checkpoint_problems(kept) == []
    with pytest.raises(Failure, match="weights alone"):
        check_complete(kept, alone())
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step_000004", "step_000006", "step_000008"]


def test_nothing_is_written_to_resume_from_where_recovery_is_disabled(run):
    run.config.recover.mode, run.config.saver.freq_steps = "disabled", 3
    checkpoints = CheckpointManager(run, world(), 100)

    assert [checkpoints.due(step, is_last=step == 5) for step in range(1, 6)] == [
        *[
            CheckpointPurpose(False, False),
            CheckpointPurpose(False, False),
            CheckpointPurpose(False, True),
            CheckpointPurpose(False, False),
            CheckpointPurpose(False, True),
        ]
    ]


def test_an_evaluated_step_is_kept_where_the_best_one_is_wanted(run):
    run.config.saver.best, run.config.recover.freq_steps = BestConfig(metric="eval/loss", mode="min"), None
    checkpoints = CheckpointManager(run, world(), 100)

    assert checkpoints.due(1, False, [""]) == CheckpointPurpose(to_resume=False, to_keep=True)
    assert not checkpoints.due(3, False, ["a benchmark"]) and not checkpoints.due(3, False)


def test_the_last_step_is_kept_and_resumable_at_any_interval(run):
    run.config.recover.freq_steps = None

    assert CheckpointManager(run, world(), 100).due(7, is_last=True) == CheckpointPurpose(True, True)
    assert not CheckpointManager(run, world(), 100).due(7, is_last=False)


def test_a_checkpoint_is_synced_before_its_mark_and_before_older_ones_are_deleted(run, monkeypatch):
    """A power failure cannot be simulated: the order of the sync calls is checked instead."""
    events: list[str] = []
    fsync, rename, remove = os.fsync, os.rename, shutil.rmtree

    def watched_fsync(handle: int) -> None:
        fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        events.append(f"sync {path.relative_to(run.checkpoints)}")
        if path.name.endswith(".half") and path.parent == run.checkpoints:
            events.append(f"marked: {(path / '.complete').exists()}")

    def watched_rename(old: Path, new: Path, **more: Any) -> None:
        rename(old, new, **more)
        events.append(f"rename to {Path(new).name}")

    def watched_remove(path: Path, **more: Any) -> None:
        if Path(path).exists():
            events.append(f"remove {Path(path).name}")
        remove(path, **more)

    engine = make_engine(Path(run.config.model.path))
    run.config.recover.keep = 1
    folder = written(run, engine, 2)
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    monkeypatch.setattr(shutil, "rmtree", watched_remove)
    folder = written(run, engine, 4)

    mark = events.index("sync .step_000004.1.half/.complete")
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.name != ".complete"]
    assert len(files) > 5 and all(f"sync .step_000004.1.half/{name}" in events[:mark] for name in files)
    assert "marked: False" in events[:mark] and "marked: True" in events[mark:]
    assert events[events.index("marked: True") :] == [
        "marked: True",
        "rename to step_000004",
        "sync .",
        "rename to .step_000002.gone",
        "sync .",
        "remove .step_000002.gone",
    ]


def test_one_step_is_written_once(run):
    checkpoints, progress = CheckpointManager(run, world(), 100), TrainingProgress(run, ME, world())
    assert checkpoints.due(2, is_last=False) == CheckpointPurpose(True, False)
    checkpoints.write(2, CheckpointPurpose(True, True), {"actor": make_engine(Path(run.config.model.path))}, progress)
    checkpoints.wait()

    assert not checkpoints.due(2, is_last=True)


def test_a_checkpoint_of_an_abandoned_lineage_is_replaced(run):
    engine = make_engine(Path(run.config.model.path))
    folder = written(run, engine, 2)
    before = (folder / "model.safetensors").read_bytes()
    learn(engine, 0)
    written(run, engine, 2)

    assert (folder / "model.safetensors").read_bytes() != before and checkpoint_files.checkpoint_problems(folder) == []


@pytest.mark.parametrize("fault", [OSError(122, "Disk quota exceeded"), SafetensorError("(os error 28)")])
def test_a_full_disk_is_a_failure_with_a_remedy(fault, run, monkeypatch):
    def full(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(checkpoint_module, "write_manifest", full)
    with pytest.raises(Failure, match=r"(quota exceeded|os error 28\)); free some space"):
        written(run, make_engine(Path(run.config.model.path)), 2)
    assert complete_checkpoints(run.checkpoints) == []


def test_a_part_on_a_disk_of_another_node_is_not_called_a_lack_of_space(run, monkeypatch):
    usual, part = checkpoint_files.write_manifest, {"resume/part-1": FilePart(3, "")}
    monkeypatch.setattr(checkpoint_module, "write_manifest", lambda folder, step, written: usual(folder, step, part))
    with pytest.raises(Failure, match=r"written: .*is not there; cluster\.fileroot must .* share$"):
        written(run, make_engine(Path(run.config.model.path)), 2)


def test_another_optimizer_than_the_checkpoint_s_is_refused(run):
    engine = make_engine(Path(run.config.model.path))
    learn(engine, 0)
    folder = written(run, engine, 1)

    with pytest.raises(Failure, match=r"actor\.optimizer\.type.*AdamW.*DecoupledSGD"):
        resumed(run, folder, actor=make_engine(engine.folder, folder, type="sgd"))


def test_another_model_than_the_checkpoint_s_is_refused(run, tmp_path):
    engine = make_engine(Path(run.config.model.path))
    learn(engine, 0)
    folder = written(run, engine, 1)

    with pytest.raises(Failure, match=r"resume: .*this model has no lm_head.weight; resume with the model"):
        resumed(run, folder, actor=make_engine(model_folder(tmp_path, "qwen3")))
    with pytest.raises(Failure, match=r"resume: .*step_000001 has no critic, only actor"):
        resumed(run, folder, critic=engine)
    with pytest.raises(Failure, match=r"resume: .*it has no adapter; set actor\.use_lora, actor\.lora_rank, "):
        resumed(run, folder, actor=make_engine(engine.folder, folder, use_lora=True))


def test_training_during_a_checkpoint_write_does_not_change_it(run, monkeypatch):
    go_on, engine = threading.Event(), make_engine(Path(run.config.model.path))
    monkeypatch.setattr(EngineSnapshot, "write_folder", slow(EngineSnapshot.write_folder, go_on))
    learn(engine, 0)
    before = weights_of(engine)
    checkpoints, progress = CheckpointManager(run, world(), 100), TrainingProgress(run, ME, world())
    checkpoints.write(1, CheckpointPurpose(True, True), {"actor": engine}, progress)
    learn(engine, 1)
    assert complete_checkpoints(run.checkpoints) == []
    go_on.set()
    checkpoints.wait()

    ((step, folder),) = complete_checkpoints(run.checkpoints)
    assert step == 1
    loaded = weights_of(make_engine(engine.folder, folder))
    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.items())


def slow(write: Any, go_on: threading.Event) -> Any:
    def wait_and_write(*words: Any) -> None:
        assert go_on.wait(120)
        write(*words)

    return wait_and_write


def test_partial_files_of_a_killed_process_are_removed(run):
    for name in (".step_000003.1.half", ".step_000003.half", ".step_000002.gone", "step_000001", ".mine"):
        (run.checkpoints / name).mkdir(parents=True)
        (run.checkpoints / name / "model.safetensors").touch()
    CheckpointManager(run, world(), 100)

    assert sorted(path.name for path in run.checkpoints.iterdir()) == [".mine", "step_000001"]


def test_a_checkpoint_is_incomplete_if_a_rank_cannot_write(run, monkeypatch):
    """Here another rank, which reports the failure."""
    monkeypatch.setattr(RankVote, "all_succeeded", lambda self, succeeded: False)
    with pytest.raises(Failure, match=r"step_000002.1.half: another rank could not write"):
        written(run, make_engine(Path(run.config.model.path)), 2)
    assert complete_checkpoints(run.checkpoints) == []


def test_state_without_tensors_is_plain_json(run):
    engine = make_engine(Path(run.config.model.path))
    folder = written(run, engine, 2)

    state = json.loads((folder / "resume" / "trainer.json").read_text())
    assert (state["step"], state["attempt"], state["progress"]["samples"]) == (2, 1, 77)
    assert state["engines"]["actor"]["optimizer"] == "AdamW"


def test_a_failed_background_write_is_raised_at_the_next_step(run, monkeypatch):
    """And not as late as at the next checkpoint."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EngineSnapshot, "write_folder", full)
    checkpoints, engine = CheckpointManager(run, world(), 100), make_engine(Path(run.config.model.path))
    assert run.config.weights.save_async
    checkpoints.write(1, CheckpointPurpose(True, False), {"actor": engine}, TrainingProgress(run, ME, world()))
    assert checkpoints._thread is not None
    checkpoints._thread.join()
    with pytest.raises(checkpoint_module.CheckpointNotWritten, match="No space left"):
        checkpoints.due(2, is_last=False)


def test_a_step_that_is_written_again_to_resume_alone_is_not_kept(run):
    engine, checkpoints = make_engine(Path(run.config.model.path)), CheckpointManager(run, world(), 100)
    progress = TrainingProgress(run, ME, world())
    for to_keep in (False, False, True):
        checkpoints.write(4, CheckpointPurpose(True, to_keep), {"model": engine}, progress)
        checkpoints.wait()
        assert (run.checkpoints / "step_000004" / KEPT).exists() == to_keep


def test_a_checkpoint_that_is_written_again_survives_a_kill_at_any_moment(run, monkeypatch):
    """Without resume state, as of the saver, and then with it, as of a stop."""
    engine, progress = make_engine(Path(run.config.model.path)), TrainingProgress(run, ME, world())
    checkpoints, target = CheckpointManager(run, world(), 100), run.checkpoints / "step_000001"
    rename, seen = Path.rename, []

    def write(*due: bool) -> None:
        checkpoints.write(1, CheckpointPurpose(*due), {"model": engine}, progress)
        checkpoints.wait()

    def killed(path: Path, to: Path) -> Path:
        if path.suffix == ".half":
            raise KeyError("killed")
        return rename(path, to)

    def looked_at(folder: Path, states: Path | None) -> None:
        seen.extend([can_resume(target)] if folder.suffix == ".gone" else [])
        discard(folder, states)

    write(False, True)
    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyError):
        write(True, True)
    monkeypatch.undo()
    assert not target.exists() and not can_resume(run.checkpoints / ".step_000001.gone")
    assert CheckpointSearch(run).wait(60, "", print).checkpoint == target and can_resume(target)

    shutil.rmtree(target)
    checkpoints = CheckpointManager(run, world(), 100)
    write(False, True)
    monkeypatch.setattr(checkpoint_module, "discard", looked_at)
    write(True, True)
    assert seen == [True], "the old one is removed once the new one is in its place"
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_000001"]


def test_resume_state_that_a_kill_has_left_in_a_kept_checkpoint_is_removed_later(run, monkeypatch):
    run.config.recover.keep = 1
    engine, progress = make_engine(Path(run.config.model.path)), TrainingProgress(run, ME, world())
    checkpoints = CheckpointManager(run, world(), 100)

    def write(step: int) -> None:
        checkpoints.write(step, CheckpointPurpose(True, True), {"model": engine}, progress)
        checkpoints.wait()

    def killed(folder: Path, states: Path | None) -> None:
        if folder.name == "resume":
            raise KeyError("killed")

    write(1)
    monkeypatch.setattr(checkpoint_module, "discard", killed)
    with pytest.raises(KeyError):
        write(2)
    monkeypatch.undo()
    first = run.checkpoints / "step_000001"
    assert not can_resume(first) and (first / "resume").is_dir()
    write(3)
    assert not (first / "resume").exists() and checkpoint_problems(first, with_hashes=True) == []
