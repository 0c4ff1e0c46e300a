"""The model that comes with the package: half trained, and made by a command that is written down beside it."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from areal_like.data.tasks.addition import Addition
from areal_like.models import model_folder
from areal_like.training.main import load_trained
from areal_like.training.stop import StopRequest
from areal_like.training.supervised import Supervised, train
from areal_like.training.supervised_data import SupervisedData
from tests.greedy import greedy_accuracy
from tests.training_runs import ME, make_run, world

FOLDER = model_folder("builtin:tiny-addition")
ORIGIN = json.loads((FOLDER / "origin.json").read_text())
LEAST, MOST = 0.40, 0.50


def held_out_score(folder: Path) -> float:
    return greedy_accuracy(folder, Addition().rows("test"))


def test_it_answers_some_held_out_additions_and_leaves_room_to_learn():
    score = held_out_score(FOLDER)

    assert LEAST <= score <= MOST
    assert score == pytest.approx(ORIGIN["held_out_greedy_accuracy"], abs=0.005)


def test_it_is_small_and_of_single_precision():
    file = FOLDER / "model.safetensors"

    assert file.stat().st_size < 2_000_000
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.float32}


def test_a_model_that_ends_its_answers_wrongly_scores_nothing(tmp_path):
    """What follows the digits counts: it is not enough that the right ones come."""
    rows = [{**row, "answer": row["answer"] + "0"} for row in Addition().rows("test")[:200]]

    assert greedy_accuracy(FOLDER, rows) == 0


@pytest.mark.slow
def test_the_command_beside_it_makes_it_again(tmp_path):
    """To the last bit where versions and processor are those it was made with; elsewhere sums round differently."""
    words = shlex.split(ORIGIN["command"])
    assert words[:5] == ["python", "-m", "launcher", "--config", "sft.yaml"]
    run = make_run(tmp_path / "run", "sft", *words[5:], "valid_dataset=null")
    learner = Supervised(load_trained(run, run.config.model, "model", world()), run.config.seed)
    assert train(run, ME, world(), learner, SupervisedData(run), StopRequest(world())) == 0
    made = max(run.checkpoints.glob("step_*"))

    assert LEAST - 0.1 <= held_out_score(made) <= MOST + 0.1
    if ORIGIN["torch"] == torch.__version__ and ORIGIN["cpu"] == torch.backends.cpu.get_cpu_capability():
        shipped, again = load_file(FOLDER / "model.safetensors"), load_file(made / "model.safetensors")
        assert all(torch.equal(again[name], tensor) for name, tensor in shipped.items())
