"""The benchmark of the start runs, and its report is complete; times are not checked."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_like.config.experiment import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[2]
BASES = ["python -c pass", "plain Hydra", "plain Hydra, one override"]
ANSWERS = {"--help": 0.15, "--dry-run": 0.5, "--dry-run=json": 0.5, "--cfg": None, "error": 0.35}


@pytest.mark.slow
def test_the_benchmark_measures_every_answer(tmp_path: Path) -> None:
    output = tmp_path / "new" / "config.json"
    command = [sys.executable, str(ROOT / "tests/bench/bench_config.py"), "--repeats", "1", "--output", str(output)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr

    results = json.loads(output.read_text(encoding="utf-8"))
    assert list(results["commands"]) == [*BASES, *ANSWERS]
    for name, row in results["commands"].items():
        assert len(row["runs_s"]) == 1
        assert row["wall_s"] == row["runs_s"][0] > 0
        assert row["cpu_s"] > 0
        assert all(math.isfinite(row[ratio]) and row[ratio] > 0 for ratio in ("times_python", "times_hydra"))
        assert row["aim_s"] == ANSWERS.get(name)
        assert any(line.startswith(name) for line in done.stdout.splitlines())
    assert set(results["fields"]) == set(EXPERIMENTS)
    assert all(count > 100 for count in results["fields"].values())
    assert all(results[name].count(".") >= 2 for name in ("python", "hydra", "omegaconf"))
    assert len(results["load_average"]["before"]) == len(results["load_average"]["after"]) == 3
    assert results["commit"] is None or len(results["commit"]) == 40
    assert str(output) in done.stdout
