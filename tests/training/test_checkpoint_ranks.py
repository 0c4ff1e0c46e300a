"""A checkpoint of any number of ranks can be resumed by any other number."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from areal_like.process import checkpoint_files
from areal_like.process.run import Run
from tests.support import rank_processes
from tests.support.checkpoint_ranks import train
from tests.support.training_runs import make_run, model_folder, start_from, world

SETTINGS = {
    "full": ("model.dtype=float32",),
    "masters": ("model.dtype=bfloat16", "model.optimizer.type=muon"),
    "adapter": ("model.dtype=float32", "model.use_lora=true", "model.lora_rank=4"),
}
Runs = dict[str, Run]
"""By the name of their settings."""


@pytest.fixture
def whole(tmp_path: Path) -> Runs:
    """Trained by one rank."""
    model_folder(tmp_path, "qwen3")
    runs = made(tmp_path, "whole")
    for run in runs.values():
        train(run, 2, world())
    return runs


def made(root: Path, name: str) -> Runs:
    own = (f"model.path={root}/qwen3", "model.optimizer.lr=0.01", "model.optimizer.warmup_steps=0")
    return {kind: make_run(root / f"{name}-{kind}", "sft", *own, *words) for kind, words in SETTINGS.items()}


def ranks(size: int, *jobs: tuple[Runs, int]) -> None:
    """Trains runs to a step each."""
    words = [json.dumps({"run": str(run.directory), "steps": steps}) for runs, steps in jobs for run in runs.values()]
    rank_processes.finish(rank_processes.start("tests.support.checkpoint_ranks:run", {size: words}))


def resumed(run: Run, source: Run, step: int) -> Run:
    return start_from(run, source.checkpoints / f"step_{step:06}", step, attempt=2)


def resume(runs: Runs, sources: Runs, step: int) -> None:
    for kind, run in runs.items():
        resumed(run, sources[kind], step)


def check_ends(root: Path, whole: Runs, *sources: tuple[Runs, int]) -> None:
    """One rank that resumes any of them ends where it ends by itself."""
    last = made(root, "last")
    for kind in SETTINGS:
        train(resumed(whole[kind], whole[kind], 2), 4, world())
        expected = load_file(whole[kind].checkpoints / "step_000004" / "model.safetensors")
        for source, step in sources:
            train(resumed(last[kind], source[kind], step), 4, world())
            actual = load_file(last[kind].checkpoints / "step_000004" / "model.safetensors")
            differences = torch.cat([(actual[name] - each).float().abs().flatten() for name, each in expected.items()])
            if kind == "masters":  # which are rounded in each step, here and there with another sign of Adam's step
                assert differences.mean() < 4e-4
            else:
                assert differences.max() < 1e-5, kind


def test_checkpoints_of_two_ranks_are_resumed_by_one_and_the_reverse(whole, tmp_path):
    """Each is written beside an update that the ranks make together."""
    twos, ones = made(tmp_path, "two"), made(tmp_path, "one")
    resume(ones, whole, 2)
    ranks(2, (twos, 2), (ones, 3))
    check_ends(tmp_path, whole, (twos, 2), (ones, 3))
    check_parts(twos["full"].checkpoints / "step_000002", 2)
    check_shares(ones["full"], whole["full"].checkpoints / "step_000002")


def test_a_rank_that_is_gone_is_named_by_those_that_wait_for_it():
    """The ranks check it themselves."""
    rank_processes.finish(rank_processes.start("tests.support.checkpoint_ranks:leaves", {2: []}))


@pytest.mark.slow
def test_a_rank_that_failed_does_not_wait_for_one_whose_disk_hangs(tmp_path):
    """The ranks check it themselves: the failure must end the run, not stay in the rank."""
    words = f"model.path={model_folder(tmp_path, 'qwen3')}", "model.dist_timeout_s=1", "weights.save_async=false"
    run = make_run(tmp_path / "run", "sft", *words)
    rank_processes.finish(rank_processes.start("tests.support.checkpoint_ranks:stuck", {2: [str(run.directory)]}))


@pytest.mark.slow
def test_a_checkpoint_of_four_ranks_is_resumed_by_two_and_then_one(whole, tmp_path):
    fours, twos = made(tmp_path, "four"), made(tmp_path, "two")
    ranks(4, (fours, 2))
    resume(twos, fours, 2)
    ranks(2, (twos, 3))
    check_ends(tmp_path, whole, (twos, 3))
    check_parts(fours["full"].checkpoints / "step_000002", 4)
    check_shares(twos["full"], fours["full"].checkpoints / "step_000002")


def check_shares(run: Run, checkpoint: Path) -> None:
    """Each of two ranks has read about half of the checkpoint that they resumed from, and no file was read twice."""
    shares = [json.loads((run.directory / f"hashed-{rank}.json").read_text()) for rank in range(2)]
    names = [str(checkpoint / name) for name in checkpoint_files.manifest_parts(checkpoint)]
    assert sorted(shares[0] + shares[1]) == sorted(names)
    sizes = [sum(Path(name).stat().st_size for name in share) for share in shares]
    assert min(sizes) > 0.3 * sum(sizes)


def check_parts(folder: Path, num_ranks: int) -> None:
    """Each rank wrote its share, and no tensor is there whole but for counts."""
    files = sorted((folder / "resume" / "model").iterdir())
    assert [file.name[:11] for file in files] == [f"shard-{rank:05}" for rank in range(1, num_ranks + 1)]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 1.3 * min(sizes) and checkpoint_files.checkpoint_problems(folder) == []
    rows = []
    for file in files:
        with safe_open(file, framework="pt") as actual:
            rows.append(actual.get_slice("exp_avg/model.embed_tokens.weight").get_shape()[0])
    assert rows == [40 // num_ranks] * num_ranks


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
