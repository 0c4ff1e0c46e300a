"""The built-in model: partly trained, and created by a recorded command."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from areal_like.data.tasks.addition import Addition
from areal_like.models import model_folder
from tests.support.answer_knowledge import greedy_accuracy

FOLDER = model_folder("builtin:tiny-addition")


ORIGIN = json.loads((FOLDER / "origin.json").read_text())


LEAST, MOST = 0.40, 0.50


def held_out_score(folder: Path) -> float:
    return greedy_accuracy(folder, Addition().rows("test"))


def test_the_built_in_model_solves_some_held_out_additions():
    score = held_out_score(FOLDER)

    assert LEAST <= score <= MOST
    assert score == pytest.approx(ORIGIN["held_out_greedy_accuracy"], abs=0.005)


def test_the_built_in_model_is_small_and_float32():
    file = FOLDER / "model.safetensors"

    assert file.stat().st_size < 2_000_000
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.float32}


def test_a_wrong_end_of_an_answer_scores_0(tmp_path):
    """What follows the digits counts: it is not enough that the right ones come."""
    rows = [{**row, "answer": row["answer"] + "0"} for row in Addition().rows("test")[:200]]

    assert greedy_accuracy(FOLDER, rows) == 0
