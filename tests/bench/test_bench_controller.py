"""The benchmark of the controller runs, and its report is complete; times are not checked."""

import json
import subprocess
import sys

import pytest

from tests.support.rollout_world import ROOT


@pytest.mark.slow
def test_the_benchmark_measures_every_number_in_flight(tmp_path):
    output = tmp_path / "new" / "controller.json"
    sizes = ["--trajectories", "64", "--in-flight", "8", "16", "--samples", "4"]
    command = [sys.executable, str(ROOT / "tests/bench/bench_controller.py"), *sizes, "--output", str(output)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    results = json.loads(output.read_text())
    rows = results["measured"]
    assert [(row["in_flight"], row["samples_per_group"]) for row in rows] == [(8, 4), (16, 4)]
    assert all(row["trajectories"] >= 64 and row["controller_cpu_ms_per_trajectory"] >= 0 for row in rows)
    assert "16 in flight, in groups of 4" in done.stdout
