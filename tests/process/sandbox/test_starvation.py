"""A time limit that a program exceeds because no processor was free is no fault of the program."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from areal_like.process.errors import InfrastructureError
from areal_like.process.process_tree import descendants_of
from areal_like.process.sandbox.base import End, SandboxLimits, SandboxResult
from areal_like.process.sandbox.program import SandboxedProgram, wait_for
from areal_like.process.sandbox.sandbox import PYTHON, Sandbox
from areal_like.process.sandbox.starvation import ProcessorUse, ThreadUse, starved_s
from areal_like.rollout.episodes.rewards.code.reward import CodeReward
from areal_like.rollout.episodes.tools.python import PythonTool
from tests.support.sandboxes import require_sandbox

LOOPS, SLEEPS = "while True: pass", "import time; time.sleep(600)"


def use(at_s: float, cpu_s: float, *waited_s: float, ready: int = 1) -> ProcessorUse:
    """`ready` of its threads are."""
    threads = {number: ThreadUse(0.0, each, number < ready) for number, each in enumerate(waited_s)}
    return ProcessorUse(at_s, cpu_s, threads)


@pytest.mark.parametrize(
    ("what", "before", "after", "expected"),
    [
        ("it loops alone", use(0, 0, 0), use(10, 10, 0), 0),
        ("it sleeps", use(0, 0.1, 0), use(10, 0.1, 0, ready=0), 0),
        ("the machine gives it a tenth", use(0, 0, 0), use(10, 1, 9), 8),
        ("it has half of a processor", use(0, 0, 0), use(10, 5, 5), 0),
        ("only what it waited since then", use(5, 1, 4), use(10, 1, 8), 4),
        ("a thread that has begun since", use(0, 0), use(10, 0, 9), 9),
        ("its children end unseen", use(0, 0, 0), use(10, 0, 9)._replace(hides_children=True), 0),
        ("no longer than the time that passed", use(0, 0, 0), use(2, 0, 60), 2),
        ("its processes make one of them wait", use(0, 0, 0, 0), use(10, 9.9, 9.9, 0, ready=2), 0),
        ("many of its processes, whose time is not seen", use(0, 5, 0), use(10, 0, 9.9, 0, 0, ready=3), 0),
        ("its processes ended, and their time is gone", use(0, 5, 0), use(10, 0, 0, ready=0), 0),
        ("it has no threads any more", use(0, 0), use(10, 0), 0),
    ],
)
def test_a_program_is_starved_only_by_others(what, before, after, expected):
    assert starved_s(before, after) == pytest.approx(expected), what


@pytest.mark.parametrize(
    ("end", "starved", "expected"), [(End.TIME, 5.1, True), (End.TIME, 4.9, False), (End.EXIT, 9.0, False)]
)
def test_a_limit_says_nothing_if_most_of_the_time_was_waiting(end, starved, expected):
    assert SandboxResult(end, 0, b"", b"", 10.0, starved).is_starved is expected


def test_a_starved_program_is_an_error_of_infrastructure_and_not_wrong(monkeypatch):
    require_sandbox("bubblewrap")
    reward, tool = CodeReward(timeout_s=10), PythonTool(10)
    monkeypatch.setattr(Sandbox, "run", lambda *_, **__: SandboxResult(End.TIME, -9, b"", b"", 10.0, 9.0))
    with pytest.raises(InfrastructureError, match=r"exceeded timeout_s=10, but waited 9.0 s for a processor"):
        reward("", f"```\n{LOOPS}\n```", [{"input": "", "output": "1"}])
    with pytest.raises(InfrastructureError, match="its time ran out"):
        tool(LOOPS)


def test_a_program_that_sleeps_is_not_starved():
    require_sandbox("bubblewrap")
    done = Sandbox(SandboxLimits(wall_s=0.5)).run_python(SLEEPS)
    assert done.end is End.TIME and not done.is_starved


@pytest.fixture
def busy_core() -> Iterator[int]:
    """A processor on which others compute."""
    core = min(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", LOOPS]) for _ in range(2)]
    for each in busy:
        os.sched_setaffinity(each.pid, {core})
    yield core
    for each in busy:
        each.kill()
        each.wait()


def test_a_program_that_others_keep_from_the_processor_is_starved(busy_core):
    require_sandbox("bubblewrap")
    with closing(Sandbox(SandboxLimits(wall_s=3)).start([*PYTHON, "-c", f"print(1, flush=True)\n{LOOPS}"])) as program:
        starving = threading.Thread(target=starve, args=(program, busy_core))
        starving.start()
        done = wait_for(program)
        starving.join()
    assert done.end is End.TIME and done.is_starved


def starve(program: SandboxedProgram, core: int) -> None:
    """Its processes run only when nothing else does, once it runs."""
    until = time.monotonic() + 60
    while not program.has_begun and time.monotonic() < until:
        time.sleep(0.01)
    for each in descendants_of(program._process.pid):
        os.sched_setaffinity(each.pid, {core})
        os.sched_setscheduler(each.pid, os.SCHED_IDLE, os.sched_param(0))
