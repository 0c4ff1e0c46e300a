"""Any process may be killed at any time: the run completes all steps and leaves no process."""

import json
import os
import random
import signal
import time

import pytest

from areal_like.rollout.audit import audit
from areal_like.rollout.rollout_files import rollout_files
from tests.ring.start import SHORT, left_behind, listening_ports, run, running, shared_memory, wait_until_gone
from tests.support.nights import at_night

pytestmark = pytest.mark.xdist_group("ring-2")

STEPS = 24
WORDS = (*SHORT, f"total_train_steps={STEPS}", "evaluator.freq_steps=12")
SAVED = ("rollout.dump_to_file=true", "log.data=true")


def test_a_run_survives_killed_trainer_controller_server_and_worker(tmp_path):
    steps = 48  # so many after the last kill that a busy test process does not come too late for it
    with running(tmp_path, *WORDS, *SAVED, f"total_train_steps={steps}") as ring:
        # Each kill but the first waits for a step of the attempt that the one before has started: two in one attempt
        # would cost one attempt together.
        for step, attempt, name in ((2, 1, "server"), (5, 1, "trainer"), (8, 2, "rollout"), (11, 3, "episodes")):
            ring.wait_for_step(step, attempt)
            ring.kill(name)
        ended = ring.wait()
    assert ended.code == 0, ended.text
    assert ended.summary["attempts"] == 3, ended.text
    lines = [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line]
    assert lines == list(range(1, steps + 1))
    events = ended.ledger()
    assert audit(events, 2) == []
    trained = {event["step"] + 1: event["groups"] for event in events if event["event"] == "trained"}
    for step, file in rollout_files(ended.directory / "rollouts").items():
        groups = [json.loads(line)["group"] for line in file.read_text().splitlines()]
        assert list(dict.fromkeys(groups)) == trained.pop(step) and len(groups) == 16 * 4
    assert trained == {}
    assert all(f"a sample of step {step}, reward " in ended.out for step in (1, steps))
    assert wait_until_gone(ended.directory) == {}


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["launcher", "guardian"])
def test_an_asynchronous_run_that_is_resumed_loses_nothing_and_trains_on_nothing_twice(killed, tmp_path):
    """Judged by the ledger of all attempts, and by the answers of the steps that count."""
    words = (*WORDS, "max_head_offpolicyness=2", "rollout.dump_to_file=true", "rollout.dump_steps=null")
    with running(tmp_path, *words) as ring:
        ring.wait_for_step(8)
        os.kill(ring.launcher() if killed == "launcher" else ring.process.pid, signal.SIGKILL)
        ring.process.wait(120)
        assert wait_until_gone(ring.directory) == {}
    ended = run(tmp_path, "resume=t", config=None)
    assert ended.code == 0 and ended.summary["attempts"] == 2, ended.text
    lines = [line for line in ended.lines("metrics.jsonl") if "train/loss" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert max(line["offpolicy/staleness_max"] for line in lines) == 2
    events = ended.ledger()
    assert audit(events, 2) == []
    (recovered,) = [event for event in events if event["event"] == "recovered"]
    assert recovered["step"] >= 6 and [*recovered["again"], *recovered["ready"]]
    counts = {event["step"]: event["groups"] for event in events if event["event"] == "trained"}
    assert sorted(counts) == list(range(STEPS))
    survivors = [group for groups in counts.values() for group in groups]
    assert len(survivors) == len(set(survivors)) == STEPS * 16
    for step, file in rollout_files(ended.directory / "rollouts").items():
        samples = [json.loads(line) for line in file.read_text().splitlines()]
        assert list(dict.fromkeys(sample["group"] for sample in samples)) == counts.pop(step - 1)
        assert min(sample["weights"][0] for sample in samples) >= step - 1 - 2
    assert counts == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trainer", "rollout", "server", "episodes"])
@pytest.mark.parametrize("seed", [0, *at_night(*range(1, 40))])
def test_a_run_killed_at_a_random_moment_recovers(name, seed, tmp_path):
    with running(tmp_path, *WORDS, f"seed={seed}") as ring:
        ring.wait_for_step(1)
        time.sleep(random.Random(f"{name} {seed}").uniform(0, 6))
        ring.kill(name)
        ended = ring.wait()
    assert ended.code == 0, ended.text
    lines = [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line]
    assert lines == list(range(1, STEPS + 1))
    assert audit(ended.ledger(), 2) == []


@pytest.mark.slow
def test_without_its_launcher_a_run_leaves_no_process_port_or_memory(tmp_path):
    with running(tmp_path, *WORDS, "total_train_steps=1000") as ring:
        ring.wait_for_step(2)
        ports, directory = listening_ports(ring.pids()), ring.directory
        assert len(ports) >= 2 and ring.pids("server") and ring.pids("trainer") and shared_memory(directory)
        os.kill(ring.launcher(), signal.SIGKILL)
        assert ring.process.wait(120) == 1
    assert left_behind(directory, ports) == []


@pytest.mark.slow
def test_a_killed_trainer_without_recovery_ends_the_whole_run(tmp_path):
    with running(tmp_path, *WORDS, "recover.mode=disabled", "total_train_steps=1000") as ring:
        ring.wait_for_step(1)
        ring.kill("trainer")
        ended = ring.wait()
    assert ended.code == 1
    assert "trainer/0" in ended.out and "signal 9" in ended.out
    assert wait_until_gone(ended.directory) == {}
