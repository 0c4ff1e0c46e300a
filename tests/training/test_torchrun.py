"""A trainer without a launcher: a run directory under plain torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_like.process.errors import Failure
from areal_like.process.identity import TOKEN
from areal_like.training import main
from tests.support.rank_processes import free_port
from tests.support.training_runs import ME, make_run, metrics_of, model_folder, world

WORDS = ("total_train_steps=2", "train_dataset.batch_size=8", "valid_dataset=null", "model.dtype=float32")


def test_supervised_training_runs_on_as_many_ranks_as_torchrun_starts(tmp_path, monkeypatch):
    together, alone = (make_run(tmp_path / name, "sft", *WORDS) for name in ("together", "alone"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AREAL_LIKE")}
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    trainer = ["-m", "areal_like.training.main", "--run-dir", str(together.directory)]
    ended = subprocess.run(
        [sys.executable, "-m", *torchrun, *trainer],
        cwd=Path(__file__).parents[2],
        env={**kept, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr

    monkeypatch.setattr("areal_like.training.world.open_world", lambda *_: world())
    monkeypatch.setattr("areal_like.training.world.World.close", lambda self: None)
    monkeypatch.setattr("areal_like.training.stop.StopRequest.listen", lambda self: None)
    assert main.main(alone, ME) == 0
    for one, two in zip(metrics_of(alone), metrics_of(together), strict=True):
        assert two["train/loss"] == pytest.approx(one["train/loss"], rel=1e-5)
        assert two["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-4)
    (checkpoint,) = together.checkpoints.glob("step_*")
    assert (checkpoint / "model.safetensors").is_file()


def test_reinforcement_learning_under_torchrun_names_the_launcher(tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.setattr("areal_like.training.world.open_world", lambda *_: world())
    monkeypatch.setattr("areal_like.training.stop.StopRequest.listen", lambda self: None)
    run = make_run(tmp_path / "run", "grpo", f"actor.path={model_folder(tmp_path, 'qwen3')}", "actor.backend=fsdp:d1")
    with pytest.raises(Failure, match=r"servers and a controller.*python -m launcher"):
        main.main(run, ME)
