"""A sweep of real runs."""

import re
import subprocess
import sys

import pytest

from areal_like.observe.reading import read_metrics
from tests.ring.start import LIMIT_S, SHORT, environment

pytestmark = pytest.mark.xdist_group("ring-2")


@pytest.mark.slow
def test_a_sweep_of_two_runs_has_a_table_and_objectives(tmp_path):
    words = [*SHORT, "cluster.fileroot=runs", "total_train_steps=2", "evaluator.freq_steps=2", "seed=1,2"]
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "--config", "grpo.yaml", "--multirun", *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(\d) +(r0001-\d) +(\d) +(0\.\d+)", done.stdout, flags=re.M)
    assert [(number, trial, seed) for number, trial, seed, _ in rows] == [("0", "r0001-0", "1"), ("1", "r0001-1", "2")]
    for _, trial, _, _ in rows:
        assert (tmp_path / "runs" / "grpo-addition" / trial / "summary.json").exists()
    losses = {read_metrics(tmp_path / "runs" / "grpo-addition" / trial)[-1]["train/loss"] for _, trial, _, _ in rows}
    assert len(losses) == 2, "another seed is another run"
