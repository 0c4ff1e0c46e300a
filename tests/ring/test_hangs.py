"""A process that stops without ending is named and killed, and the run completes."""

import os
import re
import signal

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, running, wait_until_gone

pytestmark = pytest.mark.xdist_group("ring-2")

PHASES = ("generating", "serving", "step", "collective", "publishing", "saving", "waiting")
LIMITS = ("watchdog.notice_s=2", *(f"watchdog.{phase}_s=5" for phase in PHASES))


PATIENT = ("watchdog.notice_s=5", *(f"watchdog.{phase}_s=20" for phase in PHASES), "rollout.setup_timeout=1500")
"""For runs of which a busy machine makes many processes wait."""


def trained_steps(ended):
    return [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line]


def headlines(ended):
    """What was said of processes that failed."""
    return [line for line in ended.out.splitlines() if re.match(r"\w+/\d+ failed \(", line)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_ranks_the_stopped_one_is_named_and_not_the_one_that_waits_for_it(rank, tmp_path):
    words = (*SHORT, *PATIENT, "actor.backend=fsdp:d2", "total_train_steps=12", "evaluator.freq_steps=null")
    with running(tmp_path, *words) as ring:
        ring.wait_for_step(4, limit_s=1800)
        for pid in ring.pids(f"trainer/{rank}"):
            os.kill(pid, signal.SIGSTOP)
        ended = ring.wait(1800)
    assert ended.code == 0, ended.text
    (headline,) = headlines(ended)
    assert headline.startswith(f"trainer/{rank} failed (killed by signal 9 (SIGKILL))"), ended.text
    assert f"trainer/{rank} has made no progress for" in headline and "(stopped by a signal)" in headline
    assert "attempt 2 resumes from step" in headline
    assert "gloo" not in ended.out.lower()
    assert trained_steps(ended) == list(range(1, 13)) and audit(ended.ledger(), 2) == []
    assert wait_until_gone(ended.directory) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "attempts"), [("server", 1), ("trainer", 2)])
def test_a_run_survives_a_process_that_is_stopped(name, attempts, tmp_path):
    with running(tmp_path, *SHORT, *LIMITS, "total_train_steps=24", "evaluator.freq_steps=null") as ring:
        ring.wait_for_step(2)
        for pid, process in ring.pids(name).items():
            assert process.startswith(name)
            os.kill(pid, signal.SIGSTOP)
        ended = ring.wait()
    assert ended.code == 0, ended.text
    assert f"{name}/0 has made no progress for" in ended.out and "(stopped by a signal)" in ended.out, ended.text
    assert ended.summary["attempts"] == attempts, ended.text
    lines = [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line]
    assert lines == list(range(1, 25))
    assert audit(ended.ledger(), 2) == []
    assert (ended.directory / "logs" / "hang-1" / f"{name}-0.txt").is_file()
    assert "Thread 0x" in (ended.directory / "logs" / "hang-1" / "rollout-0.txt").read_text(), "it runs and can tell"
    assert wait_until_gone(ended.directory) == {}
