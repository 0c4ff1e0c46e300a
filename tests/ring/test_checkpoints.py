"""A killed and resumed run equals an uninterrupted one: bit for bit, or to rounding with other ranks."""

import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load, load_file

from areal_like.process.checkpoint_files import complete_checkpoints
from tests.ring.start import Ended, Running, left_behind, run, running

pytestmark = pytest.mark.xdist_group("ring-2")

EVERY = 3
"""Steps from one checkpoint to the next. An epoch has two: every resumed run passes the end of one."""
WORDS = (
    *("task.name=null", "train_dataset.path=rows.jsonl", "valid_dataset=null", "train_dataset.batch_size=16"),
    *("model.optimizer.warmup_steps=0", "model.optimizer.lr_scheduler_type=constant"),
    *(f"recover.freq_steps={EVERY}", "recover.keep=null"),
)


class KilledRun(NamedTuple):
    """A run whose launcher was killed; its newest checkpoint is damaged."""

    step: int
    """Of that checkpoint."""
    model: dict[str, torch.Tensor]
    """In that checkpoint, before it was damaged."""
    num_parts: int


def killed(root: Path, *words: str) -> KilledRun:
    rows = "".join(f'{{"prompt": "{n}+{n}=", "answer": "{2 * n}"}}\n' for n in range(40))
    root.joinpath("rows.jsonl").write_text(rows)
    with running(root, *WORDS, "total_train_steps=1000", *words, config="sft.yaml") as begun:
        begun.wait_for_step(3 * EVERY)
        os.kill(begun.launcher(), signal.SIGKILL)
        assert begun.process.wait(120) == 1
    assert left_behind(begun.directory, set()) == []
    step, folder = complete_checkpoints(begun.directory / "checkpoints")[-1]
    assert step >= 2 * EVERY
    model = load((folder / "model.safetensors").read_bytes())
    damage(folder / "model.safetensors")
    return KilledRun(step, model, len(list((folder / "resume" / "model").iterdir())))


def damage(file: Path) -> None:
    """One bit of its last byte."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def resumed(root: Path, before: KilledRun, *words: str) -> Ended:
    """From the checkpoint before the damaged one, up to where that was."""
    ended = run(root, "resume=t", f"total_train_steps={before.step}", *words, config=None)
    assert ended.code == 0, ended.text
    assert f"step_{before.step:06}/model.safetensors has other content than was written" in ended.out
    assert f"resuming from step {before.step - EVERY} (attempt 2)" in ended.out
    assert [line["step"] for line in ended.lines("metrics.jsonl")] == list(range(1, before.step + 1))
    return ended


def losses(ended: Ended, before: KilledRun) -> tuple[list[float], list[float]]:
    """Of the same steps, when they were made first and when they were made again. The killed launcher may not have
    read the last lines."""
    first, again = (
        {line["step"]: line["train/loss"] for line in ended.lines(name)}
        for name in ("metrics.attempt-1.jsonl", "metrics.jsonl")
    )
    steps = [step for step in range(before.step - EVERY + 1, before.step + 1) if step in first]
    assert steps
    return [first[step] for step in steps], [again[step] for step in steps]


def test_a_killed_run_resumes_past_a_damaged_checkpoint_and_an_epoch_end(tmp_path):
    before = killed(tmp_path)
    ended = resumed(tmp_path, before)
    first, again = losses(ended, before)
    assert first == again
    model = load_file(ended.model() / "model.safetensors")
    assert model.keys() == before.model.keys()
    assert all(torch.equal(model[name], tensor) for name, tensor in before.model.items())


@pytest.mark.slow
def test_a_run_of_two_ranks_is_resumed_with_one(tmp_path):
    before = killed(tmp_path, "model.backend=fsdp:d2")
    assert before.num_parts == 2
    ended = resumed(tmp_path, before, "model.backend=fsdp:d1")
    first, again = losses(ended, before)
    assert again == pytest.approx(first, rel=1e-5)
    model = load_file(ended.model() / "model.safetensors")
    for name, tensor in before.model.items():
        torch.testing.assert_close(model[name], tensor, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_eight_steps_give_the_same_bits_in_any_sequence_of_kills_stops_and_resumes(tmp_path, num_ranks, seed):
    """Each start trains to a random step, and is killed or stopped on the way unless it has ended before."""
    draw = random.Random(f"{num_ranks} {seed}")
    words = (*WORDS, "recover.freq_steps=1", f"model.backend=fsdp:d{num_ranks}")
    rows = "".join(f'{{"prompt": "{n}+{n}=", "answer": "{2 * n}"}}\n' for n in range(40))
    for folder in (tmp_path / "whole", tmp_path / "parts"):
        folder.mkdir()
        folder.joinpath("rows.jsonl").write_text(rows)
    whole = run(tmp_path / "whole", *words, "total_train_steps=8", config="sft.yaml")
    assert whole.code == 0, whole.text
    for total in sorted(draw.sample(range(2, 8), 2)):
        with running(tmp_path / "parts", *words, f"total_train_steps={total}", config="sft.yaml") as begun:
            before, how = len(begun.steps()), draw.choice(["trainer", "launcher", "stop"])
            while begun.process.poll() is None and len(begun.steps()) <= before:
                time.sleep(0.02)
            if begun.process.poll() is None:
                interrupt(begun, how)
            assert begun.process.wait(120) in (0, 1, 75), begun.text()
    ended = run(tmp_path / "parts", *words, "total_train_steps=8", config="sft.yaml")
    assert ended.code == 0 and ended.summary["attempts"] > 2, ended.text
    assert [line["step"] for line in ended.lines("metrics.jsonl")] == list(range(1, 9))
    assert ended.metric("train/loss") == whole.metric("train/loss")
    expected, actual = (load_file(each.model() / "model.safetensors") for each in (whole, ended))
    assert expected.keys() == actual.keys()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def interrupt(begun: Running, how: str) -> None:
    if how == "trainer":
        begun.kill("trainer")
        return
    number = signal.SIGKILL if how == "launcher" else signal.SIGUSR1
    os.kill(begun.launcher() if how == "launcher" else begun.process.pid, number)
