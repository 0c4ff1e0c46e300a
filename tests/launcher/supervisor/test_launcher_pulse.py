"""A launcher that is stopped is named by its guardian, and then killed with its run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.supervisor.guardian import _writes_output
from launcher.supervisor.launcher_pulse import LauncherWatch
from tests.support.fake_runs import leftover_processes, start_fake_run


def looked(watch, seconds, state="S", work_s=0.0):
    return [each for second in range(1, seconds + 1) if (each := watch.look(state, (work_s * second, 0), 1.0))[0]]


def test_a_silent_launcher_is_named_and_then_killed():
    watch = LauncherWatch()
    assert looked(watch, 1000, "T") == [], "before the run it may plan and download for long"
    watch.hear(b"begin 60.0 300.0\nbe")
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
    watch.hear(b"begin 60.0 300.0\n")
    looks = [watch.look("S", (0.0, 0), 1.0, writes=True) for _ in range(1000)]
    ((notice, kills),) = [each for each in looks if each[0]]
    assert not kills and "its output is not taken" in notice
    assert watch.look("S", (0.0, 0), 1.0)[1], "then it hangs elsewhere"
    assert watch.look("S", (0.0, 0), 1.0) == ("", False), "it is killed once"
    watch.hear(b"begin 60.0 inf\n")
    assert not any(kills for _, kills in (LauncherWatch().look("T", (0.0, 0), 1.0) for _ in range(1000)))


def test_a_write_that_a_pipe_holds_is_seen():
    read, write = os.pipe()
    code = "import os; os.write(1, b'x' * (1 << 20))"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=write)
    os.close(write)
    try:
        until = time.monotonic() + 60
        while not _writes_output(Path(f"/proc/{child.pid}")):
            assert child.poll() is None and time.monotonic() < until
            time.sleep(0.01)
    finally:
        os.close(read)
        child.kill()
        child.wait()
    assert not _writes_output(Path("/proc/self"))


@pytest.mark.slow
def test_a_stopped_launcher_ends_its_run(tmp_path):
    run = start_fake_run(tmp_path, "watchdog.notice_s=1", "watchdog.launcher_s=3", steps=1000)
    run.until("metrics/trainer-0.jsonl")
    os.kill(run.pids()["launcher"], signal.SIGSTOP)
    ended = run.wait()
    assert ended.code == 1, ended
    assert "(stopped by a signal); the run is ended after 3 s (watchdog.launcher_s)" in ended.err
    assert "watchdog.launcher_s: launcher/0 has made no progress for" in ended.err
    assert "launcher/0 was killed by SIGKILL" in ended.err
    assert leftover_processes(tmp_path) == {}


@pytest.mark.slow
def test_a_stopped_guardian_is_continued(tmp_path):
    run = start_fake_run(tmp_path, steps=30, step_s=0.2)
    run.until("metrics/trainer-0.jsonl")
    os.kill(run.process.pid, signal.SIGSTOP)
    assert run.wait().code == 0, "else it would wait for ever"
