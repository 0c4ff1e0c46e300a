"""The benchmark of evaluations beside training computes its ratio correctly; a slow test runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.bench_evaluation import compare, measure

ROOT = Path(__file__).resolve().parents[2]


def lines(s_per_step: float, evaluated: tuple[int, ...]) -> list[dict[str, float]]:
    steps = [
        {"step": step, "time": 100 + s_per_step * step, "perf/step_s": s_per_step, "rollout/answer_tokens_mean": 4.0}
        for step in range(1, 5)
    ]
    values = {"eval/score": 1.0, "eval/answer_tokens_mean": 2.0, "eval/samples": 20.0}
    return [*steps, *({"step": step, "time": 0.0, "eval/due_step": step, **values} for step in evaluated)]


def test_the_slowdown_is_divided_by_the_share_of_tokens() -> None:
    with_, without = measure(lines(2.5, (2, 4)), 10), measure(lines(2.0, (4,)), 10)
    assert with_ == {"s_per_step": 2.5, "trained_tokens": 160, "evaluated_tokens": 40, "evaluations": 1}
    assert (without["s_per_step"], without["evaluated_tokens"]) == (2.0, 0)
    result = compare([(with_, without)])
    assert (result["share_of_tokens"], result["slower_by"]) == (0.2, pytest.approx(0.2))
    assert result["ratio"] == pytest.approx(1.0)


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    output = tmp_path / "evaluation.json"
    words = ["--steps", "10", "--rounds", "1", "--output", str(output)]
    command = [sys.executable, str(ROOT / "tests/bench/bench_evaluation.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text(encoding="utf-8"))
    assert report["runs"][0]["with"]["evaluations"] == 1 and 0 < report["share_of_tokens"] < 0.2
