"""The model that comes with the package: half trained, and made by a command that is written down beside it."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from areal_like.data.tasks.addition import Addition
from areal_like.models import model_folder
from areal_like.models.heads import widen
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


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    """The shape that it was trained in, with its tokenizer."""
    folder = tmp_path / "narrow"
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(FOLDER / file, folder)
    config = json.loads((FOLDER / "config.json").read_text())
    config["head_dim"] = ORIGIN["narrow"]["head_dim"]
    config["rope_parameters"]["rope_theta"] = ORIGIN["narrow"]["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_the_commands_beside_it_make_it_again(tmp_path, narrow):
    """To the last bit where versions and processor are those it was made with; elsewhere sums round differently."""
    words = shlex.split(ORIGIN["command"].replace("NARROW", str(narrow)))
    assert words[:5] == ["python", "-m", "launcher", "--config", "sft.yaml"]
    run = make_run(tmp_path / "run", "sft", *words[5:], "valid_dataset=null")
    learner = Supervised(load_trained(run, run.config.model, "model", world()), run.config.seed)
    assert train(run, ME, world(), learner, SupervisedData(run), StopRequest(world())) == 0
    made = tmp_path / "made"
    widen(max(run.checkpoints.glob("step_*")), made, int(ORIGIN["then"].split()[-1]))

    assert LEAST - 0.1 <= held_out_score(made) <= MOST + 0.1
    if ORIGIN["torch"] == torch.__version__ and ORIGIN["cpu"] == torch.backends.cpu.get_cpu_capability():
        shipped, again = load_file(FOLDER / "model.safetensors"), load_file(made / "model.safetensors")
        assert all(torch.equal(again[name], tensor) for name, tensor in shipped.items())


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
    words = [sys.executable, "-m", "areal_like.models.heads", str(FOLDER), str(tmp_path / "new"), "31"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 2 and "31 is no even number above 32" in done.stderr
    assert not (tmp_path / "new").exists()
