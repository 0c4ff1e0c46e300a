"""Programs in the sandbox reach nothing of the machine and of the run, in both kinds."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.sections.reward import SANDBOXES
from areal_like.process.identity import TOKEN
from areal_like.process.process_tree import all_processes
from areal_like.process.sandbox.base import SandboxLimits
from areal_like.process.sandbox.sandbox import PYTHON, Sandbox
from tests.support.attacks import ATTACKS, PRELUDE
from tests.support.sandboxes import require_sandbox

SECRET = "only-in-tests"
MARKER = "areal-like-hidden-program"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that Unix rights alone would open to every user."""
    with tempfile.TemporaryDirectory(prefix="areal-like-test-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.fixture
def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the attacks are given, and would like to reach."""
    monkeypatch.setenv(TOKEN, SECRET)
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o666)
    other = subprocess.Popen(["sleep", "600"], env={TOKEN: SECRET})
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX) as service,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        service.bind(str(folder / "s"))
        service.listen()
        datagrams.bind(str(folder / "d"))
        for name in "sd":
            (folder / name).chmod(0o777)
        yield {
            "secret": str(secret),
            "folder": str(folder),
            "port": listening.getsockname()[1],
            "socket": str(folder / "s"),
            "datagrams": str(folder / "d"),
            "pid": other.pid,
            "marker": MARKER,
            "packages": _packages("sympy", "mpmath"),
        }
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert other.poll() is None, "a program has ended a process of the test"
    other.kill()
    other.wait()
    assert sorted(os.listdir(folder)) == ["d", "s", "secret"]
    assert secret.read_text() == SECRET
    assert secret.stat().st_mode & 0o777 == 0o666


def _packages(*names: str) -> list[str]:
    found = [importlib.util.find_spec(name) for name in names]
    return sorted({str(Path(each.origin).parents[1]) for each in found if each is not None and each.origin})


@pytest.mark.parametrize("kind", SANDBOXES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_program_is_held_that(attack: str, kind: str, prepared: dict[str, Any]) -> None:
    require_sandbox(kind)
    if "sympy" in attack:
        pytest.importorskip("sympy")
    readable = [f"{folder}/{name}" for folder in prepared["packages"] for name in ("sympy", "mpmath")]
    sandbox = Sandbox(SandboxLimits(wall_s=60, cpu_s=60), kind=kind, readable=readable if "sympy" in attack else ())
    code = f"{PRELUDE}{ATTACKS[attack]}\nprint('tried')\n"
    done = sandbox.run([*PYTHON, "main.py"], files={"main.py": code}, stdin=json.dumps(prepared).encode())
    assert b"escaped" not in done.stdout and SECRET.encode() not in done.stdout, done.stdout.decode()
    killed_itself = attack == "sends signals"
    hides = attack == "hides in other sessions"
    assert b"tried" in done.stdout or killed_itself or (hides and done.exit_code == 0), done
    assert not [pid for pid in all_processes() if _has_marker(pid)]


OF_THE_SAME_USER = (
    *("connects to a service of the machine", "reads the environment of other processes", "traces other processes"),
    *("sends signals", "changes the limits of others and its own", "writes outside of its folder"),
)
AS_ANOTHER_USER = """
import ctypes, json, os, subprocess, sys
from areal_like.process.sandbox import confine
from areal_like.process.sandbox.base import SandboxLimits
from areal_like.process.sandbox.sandbox import PYTHON, Sandbox
prepared, code = json.load(sys.stdin)
confine._change_user(ctypes.CDLL(None, use_errno=True), 54321, True)
other = subprocess.Popen(["sleep", "600"])
done = Sandbox(SandboxLimits(wall_s=60, cpu_s=60), kind="rlimits").run(
    [*PYTHON, "main.py"], files={"main.py": code}, stdin=json.dumps({**prepared, "pid": other.pid}).encode()
)
print(done.stdout.decode(), "ended" if other.poll() is not None else "alive", done)
other.kill()
other.wait()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests try this where the user is not root")
@pytest.mark.parametrize("attack", OF_THE_SAME_USER)
def test_a_program_that_runs_as_the_user_of_the_run_is_held(attack: str, prepared: dict[str, Any]) -> None:
    require_sandbox("rlimits")
    code = f"{PRELUDE}{ATTACKS[attack]}\nprint('tried')\n"
    command = [sys.executable, "-c", AS_ANOTHER_USER]
    given = json.dumps([prepared, code])
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=True)
    assert "alive" in done.stdout and "escaped" not in done.stdout, done.stdout
    assert "tried" in done.stdout or attack == "sends signals", done.stdout


def _has_marker(pid: int) -> bool:
    try:
        return MARKER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
