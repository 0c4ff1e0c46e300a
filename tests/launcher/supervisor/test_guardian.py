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
