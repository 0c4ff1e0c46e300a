"""A launcher that is stopped is named by its guardian, and then killed with its run."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.process.process_tree import ProcessInfo
from launcher.supervisor import guardian
from launcher.supervisor.guardian import _writes_output
from launcher.supervisor.launcher_pulse import LAUNCHER_PULSE, LauncherPulse, LauncherWatch
from launcher.supervisor.roster import Roster
from tests.support.fake_runs import leftover_processes, start_fake_run


def looked(watch, seconds, state="S", work_s=0.0):
    return [each for second in range(1, seconds + 1) if (each := watch.look(state, (work_s * second, 0), 1.0))[0]]


def test_a_silent_launcher_is_named_and_then_killed():
    watch = LauncherWatch()
    watch.hear(b"limit 60.0 300.0\nbegin\nbe")
    watch.hear(b"at\n")
    (notice, kills), *rest = looked(watch, 300, "T")
    assert not kills and notice.startswith("launcher/0 has made no progress for 60 s (stopped by a signal); the run is")
    assert [kills for _, kills in rest] == [True]
    watch.hear(b"beat\n")
    assert looked(watch, 59) == []
    assert looked(watch, 1000, work_s=1.0) == [], "it reads a checkpoint"
    watch.hear(b"end\n")
    assert looked(watch, 1000) == []


def test_a_launcher_whose_output_is_not_taken_is_only_named():
    watch = LauncherWatch()
    watch.hear(b"limit 60.0 300.0\nbegin\n")
    looks = [watch.look("S", (0.0, 0), 1.0, writes=True) for _ in range(1000)]
    ((notice, kills),) = [each for each in looks if each[0]]
    assert not kills and "its output is not taken" in notice
    assert watch.look("S", (0.0, 0), 1.0)[1], "then it hangs elsewhere"
    assert watch.look("S", (0.0, 0), 1.0) == ("", False), "it is killed once"


def test_a_launcher_without_a_limit_is_only_named():
    watch = LauncherWatch()
    watch.hear(b"limit 60.0 inf\nbegin\n")
    ((notice, kills),) = looked(watch, 1000, "T")
    assert not kills and "(stopped by a signal); the run is not ended" in notice


@pytest.mark.parametrize("said", [b"limit 60.0 300.0\n", b"limit 60.0 300.0\nbegin\nbeat\nend\n"])
@pytest.mark.parametrize(("state", "why"), [("T", "stopped by a signal"), ("D", "it waits for a disk")])
def test_before_and_after_the_run_a_launcher_counts_as_silent_where_it_is_stopped_or_its_disk_is_dead(said, state, why):
    watch = LauncherWatch()
    watch.hear(said)
    assert looked(watch, 1000) == [], "it waits for a checkpoint to be read, or for its trackers"
    assert looked(watch, 1000, "D", work_s=1.0) == [], "it reads"
    assert looked(watch, 59, state) == looked(watch, 1) == []
    (notice, kills), (reason, late) = looked(watch, 300, state)
    assert not kills and notice.startswith(f"launcher/0 has made no progress for 60 s ({why}); the run is ended after")
    assert late and reason.startswith("watchdog.launcher_s: launcher/0 has made no progress for 300 s")


def test_a_launcher_that_cannot_be_ended_is_named_once_and_the_other_processes_are_killed(tmp_path, monkeypatch, capfd):
    read, write = os.pipe()
    launcher, other = 1 << 30, (1 << 30) + 1
    killed = []

    def kill(pid, number):
        killed.append((pid, number))
        if len(killed) == 4:
            os.close(write)  # at last it has ended

    monkeypatch.setattr(guardian, "CHECK_S", 0.01)
    monkeypatch.setattr(guardian, "DIES_S", 0.05)
    monkeypatch.setattr(guardian, "process_info", lambda pid: ProcessInfo(pid, 1, 1, "D"))
    monkeypatch.setattr(guardian, "descendants_of", lambda pid: [ProcessInfo(other, pid, 1, "S")])
    monkeypatch.setattr(os, "kill", kill)
    pulse = LauncherPulse()
    pulse.open(write)
    pulse.limit(0.02, 0.05)
    pulse.log_in(tmp_path / "löcal logs", 1 << 20)
    pulse.begin()
    guardian._watch_launcher(read, launcher)
    os.close(read)
    assert killed == [(launcher, signal.SIGKILL), *[(other, signal.SIGKILL)] * 3]
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if "cannot be ended" in line] == [
        "launcher/0 cannot be ended: it hangs in the kernel (state D), such as on a dead disk"
    ]
    logged = (tmp_path / "löcal logs" / "hangs.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in logged] == said
    assert said[-2].startswith("watchdog.launcher_s: launcher/0 has made no progress")


def test_a_write_that_a_pipe_holds_is_seen():
    read, write = os.pipe()
    code = "import os; os.write(1, b'x' * (1 << 20))"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=write)
    os.close(write)
    try:
        until = time.monotonic() + 60
        while not _writes_output(child.pid):
            assert child.poll() is None and time.monotonic() < until
            time.sleep(0.01)
    finally:
        os.close(read)
        child.kill()
        child.wait()
    assert not _writes_output(os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while it runs", "while its last metrics are sent"])
def test_a_stopped_launcher_ends_its_run(tmp_path, moment):
    held, limits = tmp_path / "held", ("watchdog.notice_s=2", "watchdog.launcher_s=10")
    held.touch()
    run = start_fake_run(tmp_path, *limits, steps=1000 if moment == "while it runs" else 2, hold_drain=str(held))
    reached = held.with_suffix(".reached").exists
    run.until("metrics/trainer-0.jsonl") if moment == "while it runs" else run.until_true(reached)
    os.kill(run.pids()["launcher"], signal.SIGSTOP)
    ended = run.wait()
    assert ended.code == 1, ended
    assert "(stopped by a signal); the run is ended after 10 s (watchdog.launcher_s)" in ended.err
    assert "watchdog.launcher_s: launcher/0 has made no progress for" in ended.err
    assert "launcher/0 was killed by SIGKILL" in ended.err
    assert "watchdog.launcher_s: launcher/0 has made" in (ended.directory / "logs" / "hangs.log").read_text()
    assert leftover_processes(tmp_path) == {}


@pytest.mark.slow
def test_a_stopped_guardian_is_continued(tmp_path):
    run = start_fake_run(tmp_path, steps=30, step_s=0.2)
    run.until("metrics/trainer-0.jsonl")
    os.kill(run.process.pid, signal.SIGSTOP)
    ended = run.wait()
    assert ended.code == 0, "else it would wait for ever"
    assert "guardian/0 was stopped by a signal" in (ended.directory / "logs" / "hangs.log").read_text()


def test_what_ends_because_the_guardian_is_gone_is_not_started_again(monkeypatch):
    """Until the thread that ends all processes ends the launcher as well."""
    exited: Any = SimpleNamespace(name="server/0")
    agent: Any = SimpleNamespace(exits=lambda: [exited])
    roster = Roster([], agent)
    roster.running["server/0"] = exited
    monkeypatch.setattr(LAUNCHER_PULSE, "ends", True)
    found: list[Any] = []
    looks = threading.Thread(target=lambda: found.extend(roster.exits()))
    looks.start()
    looks.join(0.3)
    assert looks.is_alive() and found == []
    LAUNCHER_PULSE.ends = False
    looks.join()
    assert found == [exited]
