"""Processes that stop without ending: they are named, killed after a report, and the run goes on as after a death."""

import os
import re
import signal

import pytest

from tests.support.fake_runs import leftover_processes, start_fake_run

LIMITS = ("watchdog.notice_s=1", *(f"watchdog.{phase}_s=3" for phase in ("loading", "serving", "step", "waiting")))

LONG = ("watchdog.loading_s=1000", "watchdog.serving_s=1000")


def start_and_stop(root, name, *words, **behaviour):
    """A run of which one process was stopped after its first step."""
    run = start_fake_run(root, *LIMITS, *words, **{"steps": 40, "step_s": 0.2} | behaviour)
    run.until("metrics/trainer-0.jsonl")
    run.until_true(lambda: name in run.pids())
    os.kill(run.pids()[name], signal.SIGSTOP)
    return run


@pytest.mark.parametrize("name", ["server/0", pytest.param("episodes/0", marks=pytest.mark.slow)])
def test_a_stopped_server_or_worker_is_named_and_replaced_alone(name, tmp_path):
    ended = start_and_stop(tmp_path, name).wait()
    assert (ended.code, ended.steps()) == (0, list(range(1, 41))), ended
    (notice,) = [line for line in ended.out.splitlines() if "it is killed after" in line]
    assert notice.startswith(f"{name} has made no progress for") and re.search(r"\(watchdog\.\w+_s\)$", notice)
    assert "(stopped by a signal)" in notice
    (replaced,) = [line for line in ended.out.splitlines() if "it is replaced (incarnation 2)" in line]
    assert replaced.startswith(f"{name} failed (killed by signal 9 (SIGKILL))")
    assert "_s: " in replaced and "stacks: logs/hang-1" in replaced
    assert ended.summary["attempts"] == 1
    reports = {path.name for path in (ended.directory / "logs" / "hang-1").iterdir()}
    assert reports == {"culprit.txt", "server-0.txt", "rollout-0.txt", "episodes-0.txt", "trainer-0.txt"}
    assert (ended.directory / "logs" / "hang-1" / "culprit.txt").read_text().startswith("watchdog.")
    assert f"{name} is killed: watchdog." in (ended.directory / "logs" / "hangs.log").read_text()
    report = (ended.directory / "logs" / "hang-1" / f"{name.replace('/', '-')}.txt").read_text()
    assert "state T" in report and "thread" in report


@pytest.mark.parametrize("name", ["trainer/0", pytest.param("rollout/0", marks=pytest.mark.slow)])
def test_a_stopped_trainer_or_controller_costs_one_attempt(name, tmp_path):
    ended = start_and_stop(tmp_path, name).wait()
    assert (ended.code, ended.steps()) == (0, list(range(1, 41))), ended
    assert ended.summary["attempts"] == 2
    (again,) = [line for line in ended.out.splitlines() if "attempt 2" in line]
    assert again.startswith(f"{name} failed (killed by signal 9 (SIGKILL))")
    assert leftover_processes(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "attempts"), [("server/0", 1), ("rollout/0", 2)])
def test_a_process_that_hangs_while_it_loads_is_replaced_when_it_should_be_ready(name, attempts, tmp_path):
    words = ("rollout.setup_timeout=20", "watchdog.notice_s=2", *LONG)
    faults = {f"{name} 1.1": {"do": "hang"}}
    ended = start_fake_run(tmp_path, *words, steps=100, step_s=0.4, faults=faults).wait()
    assert (ended.code, ended.steps(), ended.summary["attempts"]) == (0, list(range(1, 101)), attempts), ended
    (line,) = [line for line in ended.out.splitlines() if line.startswith(f"{name} failed")]
    assert f"{name} has made no progress for" in line and "while loading" in line
    assert "it was not ready within 20 s (rollout.setup_timeout)" in line


@pytest.mark.slow
def test_a_rollback_replaces_a_stopped_server_at_once(tmp_path):
    run = start_and_stop(tmp_path, "server/0", *LONG)
    run.until_output("server/0 has made no progress for")
    run.kill("trainer/0")
    ended = run.wait()
    assert (ended.code, ended.steps()) == (0, list(range(1, 41))), ended
    assert "server/0 failed (killed by signal 9 (SIGKILL))" in ended.out
    assert ended.log("server-0.attempt-2.log")


@pytest.mark.slow
def test_without_recovery_a_stopped_trainer_ends_the_run_by_name(tmp_path):
    ended = start_and_stop(tmp_path, "trainer/0", "recover.mode=disabled").wait()
    assert ended.code == 1
    assert "watchdog.step_s: trainer/0 has made no progress for" in ended.err
    assert leftover_processes(tmp_path) == {}


@pytest.mark.slow
def test_a_process_that_was_stopped_for_a_moment_goes_on(tmp_path):
    run = start_and_stop(tmp_path, "server/0", *LONG)
    run.until_output("server/0 has made no progress for")
    os.kill(run.pids()["server/0"], signal.SIGCONT)
    run.until_output("server/0 makes progress again")
    ended = run.wait()
    assert (ended.code, ended.summary["attempts"]) == (0, 1), ended
    assert not (ended.directory / "logs" / "hang-1").exists()
