"""Only data pass between supervisor and agent, so an agent may run in another process, or on another machine."""

import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.discovery import file_name_store
from areal_like.process import child_process
from areal_like.process.identity import Identity
from areal_like.process.process_tree import KILL_TIMEOUT_S, process_info
from areal_like.process.pulse import GENERATING, LOADING, PAGE_BYTES, PHASES, STEP, PulseSlot
from areal_like.process.run import StartPoint
from launcher.agent import local
from launcher.agent.local import LocalAgent, _sample
from launcher.plan.plan import Process
from launcher.supervisor.hang_watch import HangWatch
from launcher.supervisor.lifecycle import Lifecycle, RunEnding, WaitLimits
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.supervisor.roster import Roster
from launcher.supervisor.supervisor import Supervisor
from tests.ring.server import make_run
from tests.support.commands import REPOSITORY

TOKEN = "/proc/self/fd/$AREAL_LIKE_TOKEN_DESCRIPTOR"
AGENT = """
import pickle, sys
from pathlib import Path
from areal_like.process.process_tree import become_subreaper
from areal_like.process.run import open_run
from launcher.agent.local import LocalAgent

become_subreaper()
agent = LocalAgent(open_run(Path(sys.argv[1])), "secret", write_logs=True)
while True:
    try:
        name, given = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    pickle.dump(getattr(agent, name)(*given), sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


class AgentElsewhere:
    """Passes each call as bytes to an agent in another process."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            assert self._process.stdin is not None and self._process.stdout is not None
            plain = tuple(list(each) if isinstance(each, Iterator) else each for each in given)
            self._process.stdin.write(pickle.dumps((name, plain)))
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)

        return call


@contextmanager
def agent_elsewhere(directory: Path) -> Iterator[Any]:
    command = [sys.executable, "-c", AGENT, str(directory)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield AgentElsewhere(process)


def planned(directory: Path, role: str, script: str) -> Process:
    log = str(directory / "logs" / f"{role}-0.log")
    env = {"AREAL_LIKE_RUN_DIR": str(directory)}
    return Process(role, 0, 0, (), (), 1, ("sh", "-c", script), env, log)


def test_a_server_is_stopped_where_a_process_of_its_engine_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run.directory / "logs").mkdir()
    with agent_elsewhere(run.directory) as agent:
        for role in ("server", "trainer"):
            below = run.directory / role
            script = f"sleep 600 & echo $! > {below}.new; mv {below}.new {below}; wait"
            agent.start(planned(run.directory, role, script), Identity(role, 0))
            while not below.exists():
                time.sleep(0.01)
            os.kill(int(below.read_text()), signal.SIGSTOP)
        while "T" not in (states := {each.name: each.state for each in agent.samples()}).values():
            time.sleep(0.01)
        assert states["server/0"] == "T" != states["trainer/0"]
        agent.kill(["server/0", "trainer/0"])
        assert process_info(int((run.directory / "server").read_text())) is None


def test_a_process_that_hangs_before_its_first_phase_is_loading(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run.directory / "logs").mkdir()
    with agent_elsewhere(run.directory) as agent:
        agent.start(planned(run.directory, "trainer", "exec sleep 100"), Identity("trainer", 0))
        (sample,) = agent.samples()
        (slot,) = sample.slots
        assert (slot.phase, list(sample.work)) == (LOADING, [slot.number])
        limits: Any = dict.fromkeys(PHASES, "auto")
        watch = HangWatch(60.0, limits)
        hangs = [hang for _ in range(301) for hang in watch.look([sample], 1.0).hangs]
        assert [hang.message for hang in hangs] == [
            "watchdog.loading_s: trainer/0 has made no progress for 300 s while loading"
        ]
        agent.kill(["trainer/0"])


def test_a_process_counts_as_loading_before_its_first_phase_and_after_its_last_one() -> None:
    page = mmap.mmap(-1, PAGE_BYTES)
    child: Any = SimpleNamespace(process=SimpleNamespace(pid=os.getpid()), page=page, identity=Identity("trainer", 0))
    assert [each.phase for each in _sample("trainer/0", child).slots] == [LOADING]
    slot = PulseSlot(page, 0)
    slot.begin(STEP)
    assert [each.phase for each in _sample("trainer/0", child).slots] == [STEP]
    slot.end()
    assert [each.phase for each in _sample("trainer/0", child).slots] == [LOADING], "where it may hang as well"


def test_work_of_a_whole_process_counts_whichever_thread_does_it(tmp_path: Path) -> None:
    page = mmap.mmap(-1, PAGE_BYTES)
    slot = PulseSlot(page, 0)
    slot.begin(GENERATING)
    child: Any = SimpleNamespace(process=SimpleNamespace(pid=os.getpid()), page=page, identity=Identity("server", 0))

    def computes() -> None:
        until = time.thread_time() + 0.3
        while time.thread_time() < until:
            pass

    used = []
    for of_process in (False, True):
        if of_process:
            slot.is_of_process()
        before = _sample("server/0", child).work[0][0]
        (thread := threading.Thread(target=computes)).start()
        thread.join(60)
        used.append(_sample("server/0", child).work[0][0] - before)
    assert used[0] < 0.2 <= used[1]


def test_a_killed_process_that_hangs_in_the_kernel_is_kept_until_it_ends(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(local, "kill_all", list)
    run, ended, identity = make_run(tmp_path / "run"), [None], Identity("trainer", 1)
    process = SimpleNamespace(pid=os.getpid(), exit_code=lambda: ended[0])
    child: Any = SimpleNamespace(process=process, page=mmap.mmap(-1, PAGE_BYTES), identity=identity, close=list)
    child.log, child.cut_output, child.scrubber = None, lambda most: None, SimpleNamespace(scrub=list)
    child.exited = lambda: None if ended[0] is None else SimpleNamespace(name="trainer/1", code=-9, time=0.0)
    agent = LocalAgent(run, "secret", write_logs=False)
    agent._alive["trainer/1"] = child
    agent.kill(["trainer/1"])
    assert [each.name for each in agent.samples()] == ["trainer/1"] and agent.exits() == []
    ended[0] = -9  # type: ignore[call-overload]
    assert [each.name for each in agent.exits()] == ["trainer/1"] and agent.samples() == []


def test_processes_that_hang_in_the_kernel_are_waited_for_together(tmp_path: Path, monkeypatch: Any) -> None:
    run, killed, now = make_run(tmp_path / "run"), list[tuple[int, float]](), [0.0]
    agent = LocalAgent(run, "secret", write_logs=False)
    for index in range(4):
        agent.start(planned(run.directory, "trainer", "exec sleep 600"), Identity("trainer", index))
    names, pids = list(agent._alive), [child.process.pid for child in agent._alive.values()]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda pause_s: now.append(now.pop() + pause_s))
    with monkeypatch.context() as hanging:
        for name in ("kill", "killpg"):
            hanging.setattr(os, name, lambda pid, _: killed.append((pid, now[0])))
        hanging.setattr(child_process, "time", clock)
        agent.kill(names)
    left = list(agent._alive)
    agent.kill(names)
    assert (left, list(agent._alive)) == (names, [])
    assert killed == [(pid, 0.0) for pid in pids], "before any is waited for"
    assert now[0] == pytest.approx(KILL_TIMEOUT_S, rel=0.01), "once, not for each of them"


def test_a_rollback_starts_nothing_beside_a_killed_process_that_does_not_die(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("launcher.supervisor.watchdog.DIES_S", 1.0)
    run = make_run(tmp_path / "run", "recover.grace_s=3")
    for name in ("logs", "metrics", "checkpoints"):
        (run.directory / name).mkdir()
    plan = [
        planned(run.directory, "rollout", "[ $AREAL_LIKE_ATTEMPT = 1 ] && kill -9 $$; exec sleep 600"),
        planned(run.directory, "trainer", "exec sleep 600"),
    ]
    reported: list[str] = []
    with (
        agent_elsewhere(run.directory) as agent,
        closing(file_name_store(tmp_path / "names", "user/run", "here", 30.0)) as names,
    ):
        kill = agent.kill
        agent.kill = lambda names: kill([name for name in names if name != "trainer/0"])
        supervisor = Supervisor(
            *(run, Roster(plan, agent), names, WaitLimits(60.0, "a key", 3.0), RestartPolicy("auto", 1)),
            *(StartPoint(1, 0, None), reported.append, Lifecycle()),
        )
        ending = supervisor.watch()
        kill(["trainer/0"])
    assert ending.outcome == "failed" and "trainer/0 was killed but cannot be ended" in ending.message, reported
    assert {path.name for path in (run.directory / "logs").glob("*.log")} == {
        "rollout-0.log",
        "trainer-0.log",
        "hangs.log",
    }


def test_a_supervisor_runs_with_an_agent_in_another_process(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for name in ("logs", "metrics", "checkpoints"):
        (run.directory / name).mkdir()
    replaced, left = run.directory / "replaced", run.directory / "left"
    until_replaced = f"until [ -e {replaced} ]; do sleep 0.02; done"
    dies = f"if [ $AREAL_LIKE_INCARNATION = 2 ]; then touch {replaced}; exec sleep 600; fi"
    dies += f"; setsid sleep 600 & echo $! > {left}; echo about to die; kill -9 $$"
    plan = [
        planned(run.directory, "server", dies),
        planned(run.directory, "rollout", until_replaced),
        planned(run.directory, "trainer", f"{until_replaced}; [ $(cat {TOKEN}) = secret ] && echo done with it"),
    ]
    reported: list[str] = []
    with (
        agent_elsewhere(run.directory) as agent,
        closing(file_name_store(tmp_path / "names", "user/run", "here", 30.0)) as names,
    ):
        supervisor = Supervisor(
            *(run, Roster(plan, agent), names, WaitLimits(60.0, "a key", 60.0), RestartPolicy("auto", 1)),
            *(StartPoint(1, 0, None), reported.append, Lifecycle()),
        )
        assert supervisor.watch() == RunEnding("done", 0)
    (line,) = [line for line in reported if "replaced" in line]
    assert line.startswith("server/0 failed (killed by signal 9 (SIGKILL)) after"), reported
    assert (run.directory / "logs" / "server-0.log").read_text() == "about to die\n"
    assert (run.directory / "logs" / "trainer-0.log").read_text() == "done with it\n"
    assert process_info(int(left.read_text())) is None


def test_a_run_with_a_killed_process_that_does_not_die_ends_by_its_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for name in ("logs", "metrics", "checkpoints"):
        (run.directory / name).mkdir()
    plan = [planned(run.directory, role, "exec sleep 600") for role in ("rollout", "trainer")]
    with (
        agent_elsewhere(run.directory) as agent,
        closing(file_name_store(tmp_path / "names", "user/run", "here", 30.0)) as names,
    ):
        supervisor = Supervisor(
            *(run, Roster(plan, agent), names, WaitLimits(60.0, "a key", 60.0), RestartPolicy("auto", 1)),
            *(StartPoint(1, 0, None), print, Lifecycle()),
        )
        ending = RunEnding("failed", 1, "trainer/0 was killed but cannot be ended")
        supervisor._watchdog.ending = ending
        assert supervisor.watch() == ending
