"""Checkpoints come back bit for bit, a damaged one is named, and old ones go as the configuration says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from areal_like.process.errors import Failure
from areal_like.process.run import Run
from areal_like.training import manifest
from areal_like.training.checkpoint import Checkpoints, Due, check_whole
from areal_like.training.engine import Engine
from areal_like.training.progress import Progress
from areal_like.training.sequences import Sequences
from tests.training_runs import ME, make_engine, make_run, model_folder, weights_of, world


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(
        tmp_path / "run", "sft", "model.path=" + str(model_folder(tmp_path, "llama")), "recover.freq_steps=2"
    )


def learn(engine: Engine, completed: int) -> None:
    """An update on random tokens, others in each step."""
    draw = np.random.default_rng(completed)
    sequences = Sequences(draw.integers(0, 40, 24).astype(np.int32), np.ones(24), np.array([8, 8, 8]))
    micro = sequences.micro_batch([0, 1, 2], world().device)
    engine.step(completed, engine.accumulate([micro], lambda micro, logprobs, entropy: -logprobs.mean()))


def written(run: Run, engine: Engine, step: int, to_keep: bool = False, to_resume: bool = True) -> Path:
    checkpoints, progress = Checkpoints(run, world(), 100), Progress(run, ME, world())
    progress.samples = 77
    checkpoints.write(step, Due(to_resume, to_keep), engine, progress, {"controller.frame": b"groups"})
    checkpoints.wait()
    return run.checkpoints / manifest.folder_name(step)


@pytest.mark.parametrize(
    "settings", [{}, {"type": "sgd"}, {"dtype": "bfloat16"}], ids=["adam", "sgd", "bfloat16 with float32 masters"]
)
def test_what_was_resumed_goes_on_as_if_it_had_never_stopped(run, settings):
    engine = make_engine(Path(run.config.model.path), **settings)
    for completed in range(3):
        learn(engine, completed)
    folder = written(run, engine, 3)
    for completed in range(3, 6):
        learn(engine, completed)

    check_whole(folder)
    again, progress = make_engine(engine.folder, folder, **settings), Progress(run, ME, world())
    Checkpoints(run, world(), 100).resume(folder, again, progress)
    for completed in range(3, 6):
        learn(again, completed)

    wanted = weights_of(engine)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in weights_of(again).items())
    assert progress.samples == 77


def test_a_checkpoint_is_a_folder_that_transformers_loads(run):
    engine = make_engine(Path(run.config.model.path))
    learn(engine, 0)
    folder = written(run, engine, 1)

    both: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    loaded, found = both
    assert not found["missing_keys"] and not found["unexpected_keys"]
    ids = torch.arange(9)[None]
    logprobs = loaded(ids).logits[0].log_softmax(-1)[:-1].gather(-1, ids[0, 1:, None]).squeeze(-1)
    micro = Sequences(np.arange(9, dtype=np.int32), np.ones(9), np.array([9])).micro_batch([0], world().device)
    torch.testing.assert_close(engine.logprobs([micro], 1.0)[0], logprobs, atol=1e-5, rtol=0)
    assert (folder / "generation_config.json").is_file()


@pytest.mark.parametrize("part", ["model.safetensors", "resume/optimizer.safetensors", "resume/controller.frame"])
@pytest.mark.parametrize("how", ["changed", "cut", "missing"])
def test_a_damaged_part_is_found_and_named(run, part, how):
    folder = written(run, make_engine(Path(run.config.model.path)), 2)
    assert manifest.complaints(folder) == [] and manifest.can_resume(folder)
    file, content = folder / part, bytearray((folder / part).read_bytes())
    if how == "changed":
        content[-1] ^= 1
        file.write_bytes(content)
    elif how == "cut":
        file.write_bytes(content[:-1])
    else:
        file.unlink()

    assert len(manifest.complaints(folder)) == 1 and part in manifest.complaints(folder)[0]
    with pytest.raises(Failure, match=part):
        check_whole(folder)


def test_a_checkpoint_without_its_mark_is_none(run):
    folder = written(run, make_engine(Path(run.config.model.path)), 2)
    (folder / ".complete").unlink()

    assert manifest.complaints(folder) and not manifest.can_resume(folder)
    assert list(manifest.checkpoints_in(run.checkpoints)) == []


def test_the_newest_keep_what_is_needed_to_resume_and_the_saver_s_keep_their_weights(run):
    engine = make_engine(Path(run.config.model.path))
    for step, to_keep in [(2, False), (4, True), (6, False), (8, False)]:
        written(run, engine, step, to_keep)

    found = {
        manifest.step_of(folder): manifest.can_resume(folder) for folder in manifest.checkpoints_in(run.checkpoints)
    }
    assert found == {8: True, 6: True, 4: False}
    kept = run.checkpoints / "step_000004"
    assert not (kept / "resume").exists() and manifest.complaints(kept) == []
    with pytest.raises(Failure, match="weights alone"):
        check_whole(kept)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step_000004", "step_000006", "step_000008"]


def test_nothing_is_written_to_resume_from_where_recovery_is_disabled(run):
    run.config.recover.mode, run.config.saver.freq_steps = "disabled", 3
    checkpoints = Checkpoints(run, world(), 100)

    assert [checkpoints.due(step, is_last=step == 5) for step in range(1, 6)] == [
        *[Due(False, False), Due(False, False), Due(False, True), Due(False, False), Due(False, True)]
    ]


def test_the_last_step_is_kept_and_can_be_gone_on_from_whatever_the_clocks_say(run):
    run.config.recover.freq_steps = None

    assert Checkpoints(run, world(), 100).due(7, is_last=True) == Due(True, True)
    assert not Checkpoints(run, world(), 100).due(7, is_last=False)


def test_one_step_is_written_once(run):
    checkpoints, progress = Checkpoints(run, world(), 100), Progress(run, ME, world())
    assert checkpoints.due(2, is_last=False) == Due(True, False)
    checkpoints.write(2, Due(True, True), make_engine(Path(run.config.model.path)), progress)
    checkpoints.wait()

    assert not checkpoints.due(2, is_last=True)


def test_a_checkpoint_of_a_lineage_that_was_given_up_is_replaced(run):
    engine = make_engine(Path(run.config.model.path))
    folder = written(run, engine, 2)
    before = (folder / "model.safetensors").read_bytes()
    learn(engine, 0)
    written(run, engine, 2)

    assert (folder / "model.safetensors").read_bytes() != before and manifest.complaints(folder) == []


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), SafetensorError("os error 28")])
def test_a_full_disk_is_a_failure_that_says_what_to_do(fault, run, monkeypatch):
    def full(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(manifest, "seal", full)
    with pytest.raises(Failure, match=r"(No space left on device|os error 28); free some space"):
        written(run, make_engine(Path(run.config.model.path)), 2)
    assert list(manifest.checkpoints_in(run.checkpoints)) == []


def test_another_optimizer_than_the_checkpoint_s_is_refused(run):
    engine = make_engine(Path(run.config.model.path))
    learn(engine, 0)
    folder = written(run, engine, 1)

    with pytest.raises(Failure, match=r"actor\.optimizer\.type.*AdamW.*DecoupledSGD"):
        Checkpoints(run, world(), 9).resume(
            folder, make_engine(engine.folder, folder, type="sgd"), Progress(run, ME, world())
        )
