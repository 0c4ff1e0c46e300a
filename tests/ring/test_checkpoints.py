"""A killed and resumed run equals an uninterrupted one: bit for bit, or to rounding with other ranks."""

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from areal_like.process.checkpoint_files import complete_checkpoints
from tests.ring.start import Ended, left_behind, run, running

pytestmark = pytest.mark.xdist_group("ring-2")

EPOCH, STEPS = 15, 18
WORDS = (
    "train_dataset.batch_size=512",
    "evaluator.freq_steps=1",  # which takes long enough that a run can be killed between two steps
    "evaluator.num_examples=1000",
    "recover.freq_steps=2",
    "recover.keep=null",
    "model.optimizer.warmup_steps=0",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Ended:
    """One rank, from the first step to the last."""
    ended = run(tmp_path_factory.mktemp("whole"), *WORDS, f"total_train_steps={STEPS}", config="sft.yaml")
    assert ended.code == 0, ended.text
    return ended


def weights(ended: Ended) -> dict[str, torch.Tensor]:
    return load_file(ended.model() / "model.safetensors")


def killed(root: Path, *words: str) -> Path:
    """A run whose launcher was killed near the end of the first epoch; returns its newest checkpoint."""
    with running(root, *WORDS, f"total_train_steps={STEPS}", *words, config="sft.yaml") as begun:
        begun.wait_for_step(EPOCH - 2)
        os.kill(begun.launcher(), signal.SIGKILL)
        assert begun.process.wait(120) == 1
    assert left_behind(begun.directory, set()) == []
    newest, folder = complete_checkpoints(begun.directory / "checkpoints")[-1]
    assert EPOCH - 6 < newest < EPOCH
    return folder


def test_a_killed_run_resumes_past_a_damaged_checkpoint_and_an_epoch_end(whole, tmp_path):
    folder = killed(tmp_path)
    newest = int(folder.name.removeprefix("step_"))
    damage(folder / "model.safetensors")

    ended = run(tmp_path, "resume=t", config=None)
    assert ended.code == 0, ended.text
    assert f"step_{newest:06}/model.safetensors has other content than was written" in ended.out
    assert f"resuming from step {newest - 2} (attempt 2)" in ended.out
    assert ended.metric("train/loss") == whole.metric("train/loss")
    assert all(torch.equal(tensor, weights(ended)[name]) for name, tensor in weights(whole).items())


def damage(file: Path) -> None:
    """One bit of its last byte."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_run_of_two_ranks_is_resumed_with_one(whole, tmp_path):
    folder = killed(tmp_path, "model.backend=fsdp:d2")
    parts = sorted(file.name[:11] for file in (folder / "resume" / "model").iterdir())
    assert parts == ["shard-00001", "shard-00002"]

    ended = run(tmp_path, "resume=t", "model.backend=fsdp:d1", config=None)
    assert ended.code == 0, ended.text
    assert ended.metric("train/loss") == pytest.approx(whole.metric("train/loss"), rel=1e-5)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(ended)[name], tensor, atol=1e-5, rtol=1e-4, msg=name)
