"""The guardian returns the launcher's exit code and removes the run's shared memory."""

import pytest

from tests.support.commands import run_python


@pytest.mark.parametrize(("work", "code"), [("return 7", 7), ("raise KeyboardInterrupt", 130), ("sys.exit(3)", 3)])
def test_a_guardian_returns_the_exit_code_and_removes_the_shared_memory(work, code, tmp_path):
    text = f"""
import pathlib, sys
from launcher.supervisor.guardian import run_guarded
memory = pathlib.Path({str(tmp_path / "memory")!r})
def launch():
    assert memory.stat().st_mode == 0o40700
    (memory / "weights").touch()
    print("launched", flush=True)
    {work}
print("before")
code = run_guarded(launch, memory)
assert not memory.exists()
sys.exit(code)
"""
    done = run_python(text)
    assert (done.returncode, done.stdout, done.stderr) == (code, "before\nlaunched\n", "")


def test_a_guardian_prints_the_traceback_of_a_crashed_launcher():
    done = run_python(
        "import pathlib, sys\nfrom launcher.supervisor.guardian import run_guarded\n"
        "sys.exit(run_guarded(lambda: 1 // 0, pathlib.Path('/dev/shm/areal-like.none')))"
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_a_launcher_that_hangs_writes_its_stacks_before_it_is_killed(tmp_path):
    text = f"""
import os, pathlib, signal, sys, time
from areal_like.process.entrypoint import write_stacks_on_request
from launcher.supervisor import guardian
from launcher.supervisor.launcher_pulse import LAUNCHER_PULSE, STACKS
logs = pathlib.Path({str(tmp_path)!r})
guardian.CHECK_S = 0.1
def launch():
    LAUNCHER_PULSE.limit(0.1, 0.3)
    LAUNCHER_PULSE.log_in(logs, 1 << 20)
    write_stacks_on_request(logs / STACKS)
    LAUNCHER_PULSE.begin()
    os.kill(os.getppid(), signal.SIGUSR2)
    hangs()
def hangs():
    time.sleep(600)
sys.exit(guardian.run_guarded(launch, logs / "memory"))
"""
    done = run_python(text)
    assert done.returncode == 1 and "launcher/0 was killed by SIGKILL" in done.stderr, done.stderr
    assert "in hangs" in (tmp_path / "launcher-0.stacks").read_text()
