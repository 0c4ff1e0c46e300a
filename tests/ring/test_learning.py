"""What a newcomer is promised, in full: each seed learns, and the model that they begin with can be made again."""

import json
import os
import platform
import shlex
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from areal_like.data.tasks.addition import Addition
from areal_like.models import model_folder
from tests.commands import REPOSITORY
from tests.greedy import greedy_accuracy
from tests.ring.start import run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ring-1")]

FIGURES = REPOSITORY / "build" / "bench" / "quickstart.json"
SEEDS = range(1, 6)
LEARNT = 0.95
START = model_folder("builtin:tiny-addition")
ORIGIN = json.loads((START / "origin.json").read_text())


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """Those of an earlier session are gone with the first of this one."""
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
    assert ended.code == 0, ended.said
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


def test_the_model_to_begin_with_is_made_again_by_the_command_beside_it(tmp_path: Path) -> None:
    """To the last bit where it is made with the same versions on such a processor; sums round differently elsewhere."""
    python, dash_m, launcher, dash_config, config, *words = shlex.split(ORIGIN["command"])
    assert (python, dash_m, launcher, dash_config) == ("python", "-m", "launcher", "--config")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[: ORIGIN["threads"]])  # a trainer has a thread for each
    try:
        ended = run(tmp_path, *words, config=config, limit_s=900)
    finally:
        os.sched_setaffinity(0, cores)
    assert ended.code == 0, ended.said
    assert 0.4 <= greedy_accuracy(ended.model(), Addition().rows("test")) <= 0.5
    here = {name: version(name) for name in ("torch", "transformers", "numpy")}
    here |= {"cpu": torch.backends.cpu.get_cpu_capability(), "python": platform.python_version()}
    if {name: ORIGIN[name].partition("+")[0] for name in here} == {n: v.partition("+")[0] for n, v in here.items()}:
        shipped, made = (load_file(folder / "model.safetensors") for folder in (START, ended.model()))
        assert shipped.keys() == made.keys()
        assert all(torch.equal(made[name], tensor) for name, tensor in shipped.items())
