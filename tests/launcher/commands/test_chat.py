"""Checkpoints are read while their run removes older ones: by `chat`, and by runs that load one."""

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.config.loaded import build_config
from areal_like.config.problems import ConfigError
from areal_like.models import model_folder
from areal_like.process.checkpoint_files import RESUME, write_manifest
from areal_like.serving.engines.embedded.core import load_model as embedded
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.checkpoint_removal import remove
from launcher.commands import chat
from launcher.plan.build import build_plan
from launcher.runs import checkpoint_reader
from launcher.runs.checkpoints import complete_steps
from launcher.runs.run_files import write_description
from launcher.supervisor.run_lock import keep_checkpoints
from tests.support.commands import Done, Run, command_runner


def checkpoint(run_dir: Path, step: int) -> Path:
    folder = run_dir / "checkpoints" / f"step_{step:06d}"
    shutil.copytree(model_folder("builtin:tiny-addition"), folder)
    (folder / RESUME).mkdir()
    (folder / RESUME / "trainer.json").write_text("{}")
    write_manifest(folder, step)
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    loaded = load("grpo.yaml", [f"cluster.fileroot={tmp_path}", "trial_name=t"])
    plan = build_plan(loaded)
    directory = Path(plan.run_dir)
    directory.mkdir(parents=True)
    write_description(loaded, plan, "id", tmp_path, tmp_path, 1)
    checkpoint(directory, 2)
    checkpoint(directory, 4)
    return directory


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    run: Run = command_runner(tmp_path, capsys, monkeypatch)

    def ask(*words: str | Path) -> Done:
        monkeypatch.setattr("sys.stdin", io.StringIO("12+34=\n"))
        return run("chat", *words)

    return ask


def removed(run_dir: Path, step: int = 4, after: int = 6) -> None:
    """As retention does it, once a newer one is complete."""
    folder = run_dir / "checkpoints" / f"step_{step:06d}"
    if folder.is_dir():
        checkpoint(run_dir, after)
        remove(folder, None)


MOMENTS = {
    "when it was chosen": (checkpoint_reader, "_mark"),
    "before any file is read": (checkpoint_reader, "_refuse_damaged"),
    "between tokenizer and weights": (embedded, "load_engine"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_if_a_checkpoint_is_removed_during_reading_the_next_is_used(moment, run_dir, ask, monkeypatch):
    module, name = MOMENTS[moment]
    real = getattr(module, name)

    def removing(*words: Any, **more: Any) -> Any:
        removed(run_dir)
        return real(*words, **more)

    monkeypatch.setattr(module, name, removing)
    done = ask(run_dir)
    assert (done.code, len(done.out)) == (0, 4), done
    assert done.err == "the checkpoint of step 4 was removed by its run while it was read; reading the newest\n"


def test_a_checkpoint_removed_after_loading_still_answers(run_dir, ask, monkeypatch):
    real = chat._ChatModel.__init__

    def removing(self: Any, *words: Any) -> None:
        real(self, *words)
        removed(run_dir)

    monkeypatch.setattr(chat._ChatModel, "__init__", removing)
    done = ask(run_dir)
    assert (done.code, len(done.out), done.err) == (0, 4, ""), done


def test_a_removed_step_that_was_requested_is_one_error(run_dir, ask, monkeypatch):
    real = embedded.load_engine

    def removing(*words: Any) -> Any:
        removed(run_dir)
        return real(*words)

    monkeypatch.setattr(embedded, "load_engine", removing)
    done = ask(run_dir, "step=4")
    assert done[:2] == (2, "")
    problem = f"step: {run_dir} has no checkpoint of step 4; it has those of 2, 6"
    assert done.err.splitlines() == [problem, "1 problem; nothing was started."]


def test_a_damaged_checkpoint_is_named_and_another_can_be_chosen(run_dir, ask):
    (run_dir / "checkpoints/step_000004/model.safetensors").unlink()
    done = ask(run_dir)
    assert done[:2] == (2, "")
    assert "step_000004/model.safetensors is missing; choose another with step=N" in done.err
    (run_dir / "checkpoints/step_000002/resume/trainer.json").unlink()
    assert ask(run_dir, "step=2").code == 0, "what is needed to resume is not read"


def test_chat_with_a_reward_model_explains_how_to_use_it(run_dir, ask):
    message = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps({**message, "experiment": "reward_model"}))
    assert f" reward.name=model +reward.args.path={run_dir}\n" in ask(run_dir).err


def test_a_checkpoint_loaded_by_another_run_is_marked_as_kept(run_dir, tmp_path):
    first = run_dir / "checkpoints/step_000002"
    loaded = load("grpo.yaml", [f"cluster.fileroot={tmp_path}", f"actor.path={first}"])
    config = build_config(loaded.cls, loaded.values)
    assert keep_checkpoints(config, tmp_path, run_dir) == (), "a run keeps its own checkpoints itself"
    (remark,) = keep_checkpoints(config, tmp_path, tmp_path / "other")
    assert remark == f"actor.path: {first} is marked as kept: its own run no longer removes it"
    assert keep_checkpoints(config, tmp_path, tmp_path / "other") == ()
    checkpoint(run_dir, 6)
    manager: Any = SimpleNamespace(
        _config=SimpleNamespace(keep=1),
        _root=run_dir / "checkpoints",
        _run=SimpleNamespace(resume_states=None),
        _ownership=SimpleNamespace(require=lambda: None),
    )
    CheckpointManager._prune(manager)
    assert complete_steps(run_dir) == [2, 6]
    removed(run_dir, 2, 8)
    with pytest.raises(ConfigError, match=r"actor.path: .*step_000002 was just removed by its run; start again"):
        keep_checkpoints(config, tmp_path, tmp_path / "other")


def test_chat_with_a_run_without_a_model_gives_the_reason(run_dir, ask):
    shutil.rmtree(run_dir / "checkpoints")
    assert "has no model to read: there is no checkpoint" in ask(run_dir).err
