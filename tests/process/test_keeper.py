"""A keeper ends as its command does, with everything that the command has started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from areal_like.process.child_process import ChildProcess
from areal_like.process.keeper import kept_command
from areal_like.process.process_tree import descendants_of, process_info
from tests.support.commands import REPOSITORY

LIMIT_S = 60.0


@contextmanager
def keeping(*command: str, grace_s: float = 0.0) -> Iterator[ChildProcess]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    kept = ChildProcess(kept_command(command, grace_s), environment, stdout=subprocess.PIPE)
    with kept.stdout:
        yield kept
        kept.kill()


def wait_until_gone(pid: int) -> None:
    until = time.monotonic() + LIMIT_S
    while (seen := process_info(pid)) is not None and seen.state != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -SEGV $$", -11), ("kill -9 $$", -9), ("exit 0", 0)])
def test_a_keeper_ends_as_its_command_does(script: str, code: int) -> None:
    with keeping("sh", "-c", f"setsid sleep 600 & echo $!; {script}") as kept:
        assert kept.wait(LIMIT_S) == code
        assert process_info(int(kept.stdout.readline())) is None
        assert kept.usage.memory_bytes > 1 << 20


def test_a_command_that_cannot_be_started_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with keeping("/nowhere/python") as kept:
        assert kept.wait(LIMIT_S) == 1
    assert capfd.readouterr().err == "/nowhere/python cannot be started: No such file or directory\n"


def test_a_command_may_end_by_itself_before_it_is_killed() -> None:
    script = "trap 'echo closing; exit 3' TERM; echo up; while true; do sleep 0.05; done"
    with keeping("sh", "-c", script, grace_s=60) as kept:
        assert kept.stdout.readline() == b"up\n"
        kept.signal(signal.SIGTERM)
        assert kept.wait(LIMIT_S) == 3
        assert kept.stdout.read() == b"closing\n"


def test_without_a_grace_a_command_is_killed() -> None:
    with keeping("sh", "-c", "trap '' TERM; echo $$; while true; do sleep 0.05; done") as kept:
        pid = int(kept.stdout.readline())
        kept.signal(signal.SIGTERM)
        assert kept.wait(LIMIT_S) == -signal.SIGTERM
        assert process_info(pid) is None


def test_ended_orphans_of_a_command_leave_no_zombies() -> None:
    with keeping("sh", "-c", "for n in 1 2 3 4 5; do sh -c 'sleep 0.01 &'; done; echo all; exec sleep 600") as kept:
        assert kept.stdout.readline() == b"all\n"
        until = time.monotonic() + LIMIT_S
        while len(descendants_of(kept.pid)) > 1:
            assert time.monotonic() < until, descendants_of(kept.pid)
            time.sleep(0.02)
        kept.signal(signal.SIGTERM)
        assert kept.wait(LIMIT_S) is not None


def test_a_keeper_ends_with_its_owner_even_in_its_grace() -> None:
    owner = """
import subprocess, sys
from areal_like.process.keeper import kept_command
subprocess.Popen(kept_command(["sh", "-c", "trap '' TERM; setsid env -i sleep 600 & echo $$ $!; wait"], 600)).wait()
"""
    with subprocess.Popen(
        [sys.executable, "-c", owner],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        process.kill()
        for pid in pids:
            wait_until_gone(pid)
