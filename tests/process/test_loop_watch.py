"""A process whose event loop is blocked is killed, and not one that was merely stopped."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.commands import REPOSITORY

PROGRAM = """
import asyncio, os, re, signal, sys, time
from areal_like.process import loop_watch
from areal_like.process.loop_watch import LoopWatch

def report(pid):
    print("blocked", pid, flush=True)

watch = LoopWatch(float(sys.argv[2]), report)

async def main():
    time.sleep(0.2)  # it is not watched yet
    async with watch.watching():
        await asyncio.sleep(0.1)
        print("runs", os.getpid(), flush=True)
        if sys.argv[1] == "sleeps":
            time.sleep(3600)
        if sys.argv[1] == "holds the lock":
            re.match("(a+)+$", "a" * 64 + "b")
        if sys.argv[1] == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
            await asyncio.sleep(0.1)

asyncio.run(main())
if sys.argv[1] == "watcher stops":
    loop_watch.CLOSE_TIMEOUT_S = 0.2
    os.kill(watch._watcher, signal.SIGSTOP)
watch.close()
print("closed", flush=True)
"""


def start(how: str, limit_s: float) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", PROGRAM, how, str(limit_s)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["sleeps", "holds the lock"])
def test_a_process_whose_loop_is_blocked_is_reported_and_killed(how: str) -> None:
    process = start(how, 2.0)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert output.split() == ["runs", str(process.pid), "blocked", str(process.pid)]


def test_a_process_that_was_stopped_goes_on() -> None:
    with start("stopped", 1.0) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("runs")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.0)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0 and process.stdout.read() == "closed\n"


def test_a_watcher_that_is_stopped_does_not_keep_its_process_from_ending() -> None:
    output, _ = start("watcher stops", 60.0).communicate(timeout=60)
    assert output.split()[-1] == "closed"


def test_without_anything_that_blocks_it_only_ends() -> None:
    process = start("", 2.0)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output.split()) == (0, ["runs", str(process.pid), "closed"])
