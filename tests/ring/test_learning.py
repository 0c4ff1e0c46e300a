"""The quickstart learns with every seed, and its start model can be reproduced."""

import json
import os
import platform
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from areal_like.data.tasks.addition import Addition
from areal_like.models import model_folder
from areal_like.models.widen_heads import widen
from tests.ring.start import run
from tests.support.answer_knowledge import greedy_accuracy
from tests.support.commands import REPOSITORY
from tests.support.nights import at_night

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ring-1")]

FIGURES = REPOSITORY / "build" / "bench" / "quickstart.json"
SEEDS = (1, *at_night(*range(2, 6)))
LEARNT = 0.95
START = model_folder("builtin:tiny-addition")
ORIGIN = json.loads((START / "origin.json").read_text())


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """The first figure of a session replaces those of earlier sessions."""
    FIGURES.unlink(missing_ok=True)
    return {
        "what": "python -m launcher --config grpo.yaml seed=N",
        "held_out_rows": len(Addition().rows("test")),
        "cpu_count": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seeds": {},
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_the_quickstart_learns_with_every_seed(seed: int, figures: dict[str, Any], tmp_path: Path) -> None:
    load, began = os.getloadavg(), time.time()
    ended = run(tmp_path, f"seed={seed}", limit_s=900)
    wall_s = time.time() - began
    assert ended.code == 0, ended.text
    score = greedy_accuracy(ended.model(), Addition().rows("test"))
    steps = {line["step"]: line["time"] for line in ended.lines("metrics.jsonl") if "train/loss" in line}
    curve = ended.summary["curve"]
    learnt = next((step for step, value in curve if value >= LEARNT), None)
    figures["seeds"][seed] = {
        "score_of_all_held_out_rows": score,
        "curve": curve,
        "first_step_s": steps[1] - began,
        "learnt_s": None if learnt is None else steps.get(learnt, began) - began,
        "wall_s": wall_s,
        "load_average": {"before": load, "after": os.getloadavg()},
    }
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    assert score >= LEARNT, curve


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    """The shape that it was trained in, with its tokenizer."""
    folder = tmp_path / "narrow"
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(START / file, folder)
    config = json.loads((START / "config.json").read_text())
    config["head_dim"] = ORIGIN["narrow"]["head_dim"]
    config["rope_parameters"]["rope_theta"] = ORIGIN["narrow"]["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.night
def test_the_start_model_is_reproduced_by_its_recorded_commands(tmp_path: Path, narrow: Path) -> None:
    """To the last bit each time. On another processor sums round differently: it learns as steeply, but sooner or
    later."""
    first, second = (made(tmp_path / number, narrow) for number in ("first", "second"))
    least, most = ORIGIN["held_out_greedy_accuracy_elsewhere"]
    assert least <= greedy_accuracy(first, Addition().rows("test")) <= most
    weights, again, shipped = (load_file(folder / "model.safetensors") for folder in (first, second, START))
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    assert {name: tensor.shape for name, tensor in weights.items()} == {n: t.shape for n, t in shipped.items()}


def made(root: Path, narrow: Path) -> Path:
    python, dash_m, launcher, dash_config, config, *words = shlex.split(ORIGIN["command"])
    assert (python, dash_m, launcher, dash_config) == ("python", "-m", "launcher", "--config")
    root.mkdir()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[: ORIGIN["threads"]])  # a trainer has a thread for each
    try:
        ended = run(root, *(word.replace("NARROW", str(narrow)) for word in words), config=config, limit_s=900)
    finally:
        os.sched_setaffinity(0, cores)
    assert ended.code == 0, ended.text
    widen(ended.model(), root / "made", int(ORIGIN["then"].split()[-1]))
    return root / "made"
