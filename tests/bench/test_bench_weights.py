"""The benchmark of publications runs, and its report is complete; times are not checked."""

import json
import math
import sys

import pytest

from tests.bench import bench_weights

STEPS = ["copy in memory", "publish", "load and verify", "copy what was loaded", "hash what is in use"]


@pytest.mark.slow
def test_the_benchmark_measures_every_step_of_a_publication(tmp_path, monkeypatch, capsys) -> None:
    output = tmp_path / "new" / "weights.json"
    words = ["bench_weights.py", "--megabytes", "2", "--repeats", "4", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", words)
    bench_weights.main()
    results = json.loads(output.read_text(encoding="utf-8"))
    printed = capsys.readouterr().out
    assert list(results["steps"]) == STEPS
    for name, row in results["steps"].items():
        assert len(row["runs_s"]) == 4
        assert row["wall_s"] > 0
        assert math.isfinite(row["times_copy"])
        assert any(line.startswith(name) for line in printed.splitlines())
    assert results["transports"]["copy_s"] > 0
    for name in ("disk", "collective"):
        row = results["transports"][name]
        assert 0 < row["stall_s"] <= row["published_to_served_s"]
        assert row["publish_s"] < row["published_to_served_s"]
        assert all(len(seconds) == 4 for seconds in row["runs"].values())
        assert any(line.startswith(name) for line in printed.splitlines())
    assert 1_500_000 < results["num_bytes"] < 2_500_000
    assert str(output) in printed
