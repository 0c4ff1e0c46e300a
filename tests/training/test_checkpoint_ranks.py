"""A checkpoint of any number of ranks can be resumed by any other number."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from areal_like.process import checkpoint_files
from areal_like.process.run import Run
from tests.support.checkpoint_ranks import train
from tests.support.training_runs import make_run, model_folder, start_from, world
from tests.training.test_ranks import free_port

SETTINGS = {
    "full": ("model.dtype=float32",),
    "masters": ("model.dtype=bfloat16", "model.optimizer.type=muon"),
    "adapter": ("model.dtype=float32", "model.use_lora=true", "model.lora_rank=4"),
}


def ranks(size: int, *jobs: dict[str, Any]) -> None:
    shared = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "tests.support.checkpoint_ranks", json.dumps(jobs)]
    started = [
        subprocess.Popen(
            command, env={**shared, "RANK": str(rank)}, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    errors = [rank.communicate(timeout=100)[1] for rank in started]
    assert [rank.returncode for rank in started] == [0] * size, "\n".join(errors)


def resumed(run: Run, source: Run, step: int) -> Run:
    return start_from(run, source.checkpoints / f"step_{step:06}", step, attempt=2)


def test_a_checkpoint_of_four_ranks_is_resumed_by_two_and_then_one(tmp_path):
    """1 -> 2, 4 -> 2 and 2 -> 1, each beside an update that ranks make together while they write."""
    folder = model_folder(tmp_path, "qwen3")

    def made(name: str, kind: str) -> Run:
        own = ("model.optimizer.lr=0.01", "model.optimizer.warmup_steps=0", *SETTINGS[kind])
        return make_run(tmp_path / f"{name}-{kind}", "sft", f"model.path={folder}", *own)

    whole, fours, twos, ones, last = (
        {kind: made(name, kind) for kind in SETTINGS} for name in ("whole", "four", "two", "one", "last")
    )
    for kind in SETTINGS:
        train(whole[kind], 2, world())
    ranks(4, *[{"run": str(fours[kind].directory), "steps": 2} for kind in SETTINGS])
    for kind in SETTINGS:
        resumed(twos[kind], fours[kind], 2)
        resumed(ones[kind], whole[kind], 2)
    jobs = [{"run": str(run[kind].directory), "steps": 3} for run in (twos, ones) for kind in SETTINGS]
    ranks(2, *jobs)

    for kind in SETTINGS:
        train(resumed(whole[kind], whole[kind], 2), 4, world())
        expected = load_file(whole[kind].checkpoints / "step_000004" / "model.safetensors")
        for source in (twos, ones):
            train(resumed(last[kind], source[kind], 3), 4, world())
            actual = load_file(last[kind].checkpoints / "step_000004" / "model.safetensors")
            for name, tensor in expected.items():
                atol, rtol = (1e-5, 1e-5) if kind != "masters" else (0.01, 0.02)
                torch.testing.assert_close(actual[name], tensor, atol=atol, rtol=rtol, msg=f"{kind} {name}")
    check_parts(fours["full"].checkpoints / "step_000002")
    check_shares(twos["full"], fours["full"].checkpoints / "step_000002")


def check_shares(run: Run, checkpoint: Path) -> None:
    """Each of two ranks has read about half of the checkpoint that they resumed from, and no file was read twice."""
    shares = [json.loads((run.directory / f"hashed-{rank}.json").read_text()) for rank in range(2)]
    names = [str(checkpoint / name) for name in checkpoint_files.manifest_parts(checkpoint)]
    assert sorted(shares[0] + shares[1]) == sorted(names)
    sizes = [sum(Path(name).stat().st_size for name in share) for share in shares]
    assert min(sizes) > 0.3 * sum(sizes)


def check_parts(folder: Path) -> None:
    """Each rank wrote a quarter, and no tensor is there whole but for counts."""
    files = sorted((folder / "resume" / "model").iterdir())
    assert [file.name[:11] for file in files] == ["shard-00001", "shard-00002", "shard-00003", "shard-00004"]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 1.3 * min(sizes) and checkpoint_files.checkpoint_problems(folder) == []
    rows = []
    for file in files:
        with safe_open(file, framework="pt") as actual:
            rows.append(actual.get_slice("exp_avg/model.embed_tokens.weight").get_shape()[0])
    assert rows == [10] * 4


@pytest.mark.parametrize("kind", SETTINGS)
def test_two_steps_and_two_resumed_are_four_bit_for_bit(tmp_path, kind):
    """With as many ranks: here one, in the same process."""
    folder = model_folder(tmp_path, "qwen3")
    whole, parts = (
        make_run(tmp_path / name, "sft", f"model.path={folder}", *SETTINGS[kind]) for name in ("whole", "parts")
    )
    train(whole, 4, world())
    train(parts, 2, world())
    train(resumed(parts, parts, 2), 4, world())

    expected, actual = (load_file(run.checkpoints / "step_000004" / "model.safetensors") for run in (whole, parts))
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
