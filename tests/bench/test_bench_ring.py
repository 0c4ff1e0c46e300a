"""The benchmark of whole runs evaluates a run's files correctly; a slow test runs it."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench import ring_times
from tests.bench.bench_ring import ASYNC, PLAIN, SYNC, report, table
from tests.bench.watched import Watched, watch

ROOT = Path(__file__).resolve().parents[2]
BEGAN = 1_700_000_000.0


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of four steps: ready after 7 s, first step after 10 s, then one every 2 s, learnt at the third."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(BEGAN + 7))
    for folder in ("logs", "rollouts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "logs/server-0.log").write_text(f"noise\n{stamp},250 server/0 INFO ready at 127.0.0.1:1\n")
    events = [
        {"event": "submitted", "time": BEGAN + 8, "group": 0},
        {"event": "submitted", "time": BEGAN + 9, "group": 1},
        {"event": "batched", "time": BEGAN + 9.5, "step": 0},
    ]
    lines: list[dict[str, Any]] = []
    for step in range(1, 5):
        values = {"perf/step_s": 2.0, "perf/wait_s": 0.5, "perf/generate_busy_s": 1.0, "reward/mean": step / 10}
        lines.append({"step": step, "attempt": 1, "time": BEGAN + 8 + 2 * step, **values})
    lines.append({"step": 2, "time": BEGAN + 13, "eval/score": 0.8})
    lines.append({"step": 3, "time": BEGAN + 15, "eval/score": 0.92})
    (tmp_path / "rollouts/ledger.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


@pytest.fixture
def watched() -> Watched:
    """CPU: the trainer takes half of every second, the server a quarter."""
    looks = [(BEGAN + at, {"trainer/0": at / 2, "server/0": at / 4}) for at in range(20)]
    seen = {"launcher": BEGAN + 0.5, "server/0": BEGAN + 1.5, "trainer/0": BEGAN + 2}
    return Watched(began=BEGAN, wall_s=18.0, cpu_s=14.0, looks=looks, seen=seen)


def test_the_files_of_a_run_show_where_its_time_went(run_dir: Path, watched: Watched) -> None:
    row = ring_times.ring(run_dir, watched)
    assert (row["steps"], row["first_step_s"]) == (4, 10.0)
    assert (row["wall_s_per_step"], row["cpu_s_per_step"]) == (2.0, 1.5)
    assert row["cpu_s_per_step_by_process"] == {"server/0": 0.5, "trainer/0": 1.0}
    assert row["learnt"] == {
        "score": 0.9,
        "step": 3,
        "wall_s": 15.0,
        "wall_s_from_first_step": 5.0,
        "cpu_s": 11.25,
    }
    assert row["start"] == {
        "the first process of the run is there": 1.5,
        "the server is ready": 7.25,
        "the first group is handed out": 8.0,
        "the first batch is there": 9.5,
        "the first step is done": 10.0,
    }
    assert list(row["start"].values()) == sorted(row["start"].values())
    assert row["where_a_step_goes"] == {"step_s": 2.0, "wait_s": 0.5, "generate_busy_s": 1.0}


def test_the_upper_bound_is_the_gain_of_full_overlap(run_dir: Path, watched: Watched) -> None:
    parts = ring_times.ring(run_dir, watched)["where_a_step_goes"]
    assert ring_times.ceiling(parts) == pytest.approx((1.0 + 1.5) / 1.5)
    assert ring_times.ceiling({"step_s": 2.0}) is None


def test_a_score_that_was_never_reached_is_reported_as_missing(run_dir: Path, watched: Watched) -> None:
    row = ring_times.ring(run_dir, watched)
    one = {
        "threads": 1,
        "steps": [[step, BEGAN + 5 + step, 3.0 + step] for step in range(1, 5)],
        "parts_s": {"train": 2.0},
        "scores": [[0, 0.5, BEGAN + 5, 3.0], [4, 0.7, BEGAN + 9, 7.0]],
        "rewards": [0.1, 0.2, 0.3, 0.5],
    }
    plain = ring_times.plain(one, 10.0, 8.0, BEGAN)
    assert (plain["first_step_s"], plain["wall_s_per_step"], plain["cpu_s_per_step"]) == (6.0, 1.0, 1.0)
    assert plain["learnt"]["step"] is None and plain["where_a_step_goes"] == {"train_s": 0.5}
    made = report({ASYNC: row, SYNC: {**row, "wall_s_per_step": 3.0}, PLAIN: plain}, (0.0, 0.0, 0.0))
    assert made["asynchronous_speedup"] == 1.5
    assert made["ratios"][ASYNC]["wall_times_plain"] == 2.0
    assert made["ratios"][ASYNC]["learnt_wall_times_plain"] is None
    assert made["same_rewards_as_plain"] == 3
    shown = table(made)
    assert "+ 1.50  the first batch is there" in shown
    assert next(line for line in shown.splitlines() if line.startswith(PLAIN)).split().count("-") == 4
    json.dumps(made)


def test_the_cpu_time_of_a_process_is_measured_while_it_runs(tmp_path: Path) -> None:
    code = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    result = watch([sys.executable, "-c", code], tmp_path, {"AREAL_LIKE_PROCESS": "trainer/0"}, 60.0)
    assert result.exit_code == 0 and result.cpu_s >= 0.6
    assert 0.05 < result.cpu_at(math.inf)["trainer/0"] <= result.cpu_s
    assert result.cpu_at(0.0) == result.looks[0][1]


def test_the_guardian_of_a_run_is_measured_apart_from_its_launcher(tmp_path: Path) -> None:
    code = "import time\nfrom areal_like.process.process_tree import set_process_name\n"
    code += "set_process_name('areal guardian')\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    result = watch([sys.executable, "-c", code], tmp_path, {"PYTHONPATH": str(ROOT)}, 60.0)
    assert result.exit_code == 0 and "guardian" in result.memory and result.cpu_at(math.inf)["guardian"] > 0.05


def test_a_command_past_its_time_limit_is_stopped(tmp_path: Path) -> None:
    result = watch(["/bin/sh", "-c", "echo begun; exec sleep 3600"], tmp_path, {}, 0.5)
    assert result.exit_code and "begun" in result.output


@pytest.mark.slow
def test_the_benchmark_runs_and_compares_the_same_work(tmp_path: Path) -> None:
    output = tmp_path / "ring.json"
    command = [sys.executable, str(ROOT / "tests/bench/bench_ring.py"), "--steps", "3", "--output", str(output)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(output.read_text(encoding="utf-8"))
    assert list(results["runs"]) == [ASYNC, SYNC, PLAIN]
    for row in results["runs"].values():
        assert row["steps"] == 3 and 0 < row["first_step_s"] < row["wall_s"]
        assert row["wall_s_per_step"] > 0 and row["cpu_s_per_step"] > 0
    assert results["same_rewards_as_plain"] == 3, "ring and plain loop did not do the same work"
    assert results["asynchronous_speedup"] > 0 and 1 <= results["asynchronous_ceiling"] <= 2
    assert str(output) in done.stdout
