"""The start of countdown.yaml: small, with the shape of the other built-in model, and partly right."""

import json

import torch
from safetensors.torch import load_file

from areal_like.config.load import load
from areal_like.data.tasks.countdown import Countdown
from areal_like.models import model_folder
from tests.support.answer_knowledge import greedy_accuracy

FOLDER, OTHER = model_folder("builtin:tiny-countdown"), model_folder("builtin:tiny-addition")


def test_it_is_small_and_has_the_shape_and_tokenizer_of_the_other_built_in_model():
    weights, others = (load_file(folder / "model.safetensors") for folder in (FOLDER, OTHER))
    assert (FOLDER / "model.safetensors").stat().st_size < 2_000_000
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()} == {
        name: (tensor.shape, torch.float32) for name, tensor in others.items()
    }
    assert (FOLDER / "tokenizer.json").read_text() == (OTHER / "tokenizer.json").read_text()


def test_it_writes_some_of_the_expressions_of_held_out_rows():
    """Others may be right as well: `4*3` for `3*4`."""
    task = Countdown(**load("countdown.yaml").get("task.args"))
    assert 0.3 < greedy_accuracy(FOLDER, task.rows("test")[:300]) < 0.45


def test_the_recorded_command_is_that_of_a_supervised_run_on_this_task():
    origin = json.loads((FOLDER / "origin.json").read_text())
    _, _, _, _, config, *words = origin["command"].split()
    assert all(load(config, words).get(key) == load("countdown.yaml").get(key) for key in ("task.name", "task.args"))
