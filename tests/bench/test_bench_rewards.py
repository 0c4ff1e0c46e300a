"""The benchmark of rewards runs, and its report is complete; times are not checked."""

import json
import subprocess
import sys

import pytest

from tests.support.rollout_world import ROOT


@pytest.mark.slow
def test_the_benchmark_compares_both_kinds_of_hanging_rewards(tmp_path):
    output = tmp_path / "new" / "rewards.json"
    sizes = ["--answers", "100", "--rounds", "1", "--processes", "2"]
    command = [sys.executable, str(ROOT / "tests/bench/bench_rewards.py"), *sizes, "--output", str(output)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    results = json.loads(output.read_text())
    assert [row["kind"] for row in results["measured"]] == ["waits", "computes"]
    assert all(row["ratio"] > 0 and len(row["with_per_s"]) == 1 for row in results["measured"])
    assert "(aim: 95%)" in done.stdout
