"""The benchmark of large datasets runs, and its report is complete; times are not checked."""

import json
import subprocess
import sys

import pytest

from tests.support.rollout_world import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "saved"])
def test_the_benchmark_measures_every_number_of_rows(tmp_path, form):
    pytest.importorskip("pyarrow" if form == "parquet" else "datasets")
    output = tmp_path / "new" / "data.json"
    sizes = ["--rows", "200", "--forms", form, "--output", str(output)]
    command = [sys.executable, str(ROOT / "tests/bench/bench_data.py"), *sizes]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    ring, supervised = json.loads(output.read_text())["measured"]
    assert [each["experiment"] for each in (ring, supervised)] == ["grpo", "sft"]
    for row in (ring, supervised):
        assert (row["form"], row["rows"], row["first_step_s"] > 0) == (form, 200, True)
        assert all(used > 1 for used in row["memory_mb"].values())
    assert {"episodes/0", "rollout/0", "server/0", "trainer/0"} <= set(ring["memory_mb"])
