"""The built-in model: partly trained, and created by a recorded command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from areal_like.data.tasks.addition import Addition
from areal_like.models import model_folder
from areal_like.models.widen_heads import widen
from tests.support.greedy import greedy_accuracy

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


def test_wider_heads_compute_the_same(tmp_path):
    made = tmp_path / "wider"
    widen(FOLDER, made, 64)
    ids = torch.randint(2, 60, (8, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before, after = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)(ids).logits.log_softmax(-1)
            for folder in (FOLDER, made)
        )

    assert load_file(made / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"].shape == (4 * 64, 96)
    assert torch.allclose(before, after, atol=1e-3)


def test_what_cannot_be_widened_is_said(tmp_path):
    words = [sys.executable, "-m", "areal_like.models.widen_heads", str(FOLDER), str(tmp_path / "new"), "31"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 2 and "31 must be an even number above 32" in done.stderr
    assert not (tmp_path / "new").exists()
