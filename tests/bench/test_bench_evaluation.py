"""The benchmark of evaluations beside training computes its ratio correctly; a slow test runs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.bench_evaluation import COMPUTED, FREQ_STEPS, GENERATED, SHAPES, Cycle, Shape, compare, cycles

ROOT = Path(__file__).resolve().parents[2]
EVALUATED = {"eval/score": 1.0, "eval/answer_tokens_mean": 2.0, "eval/samples": 4096.0}
SHAPE = Shape(4096, 1, COMPUTED)
TRAINED = {"perf/step_s": 1.0, "rollout/answer_tokens_mean": 4.0, "train/tokens": 512 * (4.0 + 3.0)}
"""Prompts have three tokens."""


def lines(usual_s: float, slower_s: float, lasts: float, evaluations: int = 2) -> list[Any]:
    """Steps of `usual_s`, the first ones after each beginning of an evaluation slower; it lasts for `lasts` steps."""
    now, found = 100.0, list[dict[str, float]]()
    for step in range(1, (evaluations + 1) * FREQ_STEPS + 1):
        is_beside = step > FREQ_STEPS and (step - 1) % FREQ_STEPS < lasts
        now += slower_s if is_beside else usual_s
        found.append({"step": step, "time": now, **TRAINED})
        if step % FREQ_STEPS == 0:
            found.append({"step": step, "time": now + lasts * slower_s - 0.1, "eval/due_step": step, **EVALUATED})
    return found


def test_the_extra_seconds_of_steps_beside_an_evaluation_are_divided_by_its_share_of_tokens() -> None:
    found = cycles(lines(usual_s=2.0, slower_s=3.0, lasts=4), SHAPE)
    assert len(found) == 2
    computed = (8192 + 3 * 4096) / (8192 + 3 * 4096 + 16 * (2048 + 3 * 64))
    for each in found:
        assert tuple(each[:3]) == pytest.approx((4, FREQ_STEPS - 4, 4 / 36))
        assert each.shares == pytest.approx({GENERATED: 0.2, COMPUTED: computed})
    for of, share in ((GENERATED, 0.2), (COMPUTED, computed)):
        result = compare(found, of)
        assert (result["share_of_tokens"], result["slower_by"]) == (pytest.approx(share), pytest.approx(4 / 36))
        assert result["ratio"] == pytest.approx(result["ratio_low"]) == pytest.approx(4 / 36 / share)
        assert result["verdict"] == "within the aim"


def test_where_a_prompt_is_read_once_for_as_many_answers_as_in_training_both_shares_are_equal() -> None:
    as_long = {"eval/answer_tokens_mean": 4.0, "eval/samples": 2048.0}
    found = [{**line, **as_long} if "eval/score" in line else line for line in lines(2.0, 3.0, 4, evaluations=1)]
    (each,) = cycles(found, Shape(256, 8, GENERATED))
    assert each.shares[GENERATED] == pytest.approx(each.shares[COMPUTED])


def test_evaluations_that_leave_no_step_alone_do_not_count() -> None:
    assert cycles(lines(usual_s=2.0, slower_s=3.0, lasts=FREQ_STEPS), SHAPE) == []


@pytest.mark.parametrize(
    ("slower", "verdict"), [([0.1, 0.3], "not decided by this run"), ([0.3, 0.4], "above the aim")]
)
def test_noise_leaves_it_undecided(slower: list[float], verdict: str) -> None:
    assert compare([Cycle(4, 12, each, {GENERATED: 0.2}) for each in slower], GENERATED)["verdict"] == verdict


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    output = tmp_path / "evaluation.json"
    words = ["--steps", str(3 * FREQ_STEPS), "--output", str(output)]
    command = [sys.executable, str(ROOT / "tests/bench/bench_evaluation.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text(encoding="utf-8"))
    for shape in SHAPES:
        assert report[shape]["cycles"]
        assert all(0 < report[shape][of]["share_of_tokens"] < 0.3 for of in (GENERATED, COMPUTED))
