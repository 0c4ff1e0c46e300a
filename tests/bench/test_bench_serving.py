"""The benchmark of servers runs, and its report is complete; times are not checked."""

import json
import sys
from pathlib import Path

import pytest

from tests.bench import bench_serving

pytestmark = pytest.mark.xdist_group("embedded")


@pytest.mark.slow
def test_the_benchmark_measures_answers_and_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "serving.json"
    words = ["--engines", "embedded", "--in-flight", "3", "--repeats", "2", "--megabytes", "4", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["bench_serving.py", *words])
    bench_serving.main()
    results = json.loads(output.read_text(encoding="utf-8"))
    answers, weights = results["answers"]["embedded"], results["weights"]["embedded"]
    assert 0 < answers["ready_s"] < answers["first_token_s"]
    row = answers["in_flight"]["3"]
    assert len(row["runs_s"]) == 2 and len(row["transformers_runs_s"]) == 4
    assert row["times_transformers"] == pytest.approx(row["tokens_per_s"] / row["transformers_tokens_per_s"])
    for transport in bench_serving.TRANSPORTS:
        each = weights[transport]
        assert len(each["runs"]) == 2 and 0 < each["stall_s"] < each["publish_to_served_s"]
        assert each["stall_times_copy"] == pytest.approx(each["stall_s"] / weights["copy_s"])
    printed = capsys.readouterr().out
    assert "embedded, collective" in printed and str(output) in printed


def test_a_missing_engine_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AREAL_LIKE_VLLM_PYTHON", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "argv", ["bench_serving.py", "--engines", "vllm", "--output", str(tmp_path / "s.json")])
    bench_serving.main()
    assert "AREAL_LIKE_VLLM_PYTHON" in json.loads((tmp_path / "s.json").read_text())["left_out"]["vllm"]
    assert "vllm: left out: " in capsys.readouterr().out
