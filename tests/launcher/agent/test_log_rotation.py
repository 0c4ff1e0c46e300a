"""Logs of processes do not grow without limit."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from areal_like.process.entrypoint import stacks_path
from areal_like.process.identity import Identity
from launcher.agent import local
from launcher.agent.log_rotation import LogRotation, rotate
from launcher.plan.plan import Process
from tests.ring.server import make_run

WRITER = "import sys\nfor line in sys.stdin: print(line * 300, end='', flush=True); print('done', file=sys.stderr)"


def test_a_process_goes_on_at_the_new_beginning_of_its_log(tmp_path: Path) -> None:
    log, older = tmp_path / "server-0.log", tmp_path / "server-0.log.1"
    with log.open("a+b") as file:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE, text=True
        )

    def write(line: str) -> None:
        assert writer.stdin is not None and writer.stderr is not None
        writer.stdin.write(f"{line}\n")
        writer.stdin.flush()
        writer.stderr.readline()

    for line in ("first", "second", "third"):
        write(line)
        assert rotate(log, 1000)
        assert older.read_text() == f"{line}\n" * 300 and log.stat().st_size == 0
    write("last")
    assert not rotate(log, 10_000) and log.read_text() == "last\n" * 300
    writer.communicate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server-0.log", "server-0.log.1"]


def test_a_log_that_cannot_be_copied_stays(tmp_path: Path) -> None:
    log = tmp_path / "server-0.log"
    log.write_text("much")
    (tmp_path / "server-0.log.1").mkdir()
    assert not rotate(log, 1) and log.read_text() == "much"
    assert not rotate(tmp_path / "none", 1) and not rotate(None, 1)


def test_a_log_is_not_copied_to_a_disk_that_it_would_fill(tmp_path: Path, monkeypatch) -> None:
    log, rotation, asked = tmp_path / "server-0.log", LogRotation(), []
    log.write_text("much")

    def disk_usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=8)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    for _ in range(3):
        assert not rotation.rotate(log, 1)
    assert log.read_text() == "much" and asked == [tmp_path], "after a failure it pauses"


def test_the_agent_keeps_logs_and_stacks_below_the_configured_size(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(local, "SIZES_INTERVAL_S", 0.0)
    run = make_run(tmp_path / "run", "log.max_mb=1")
    logs = run.directory / "logs"
    logs.mkdir()
    log, stacks = logs / "server-0.log", stacks_path(run, Identity("server", 0))
    stacks.write_bytes(bytes(1 << 21))
    agent = local.LocalAgent(run, "secret", write_logs=True)
    wordy = "while true; do head -c 100000 /dev/zero | tr '\\0' x; done"
    try:
        agent.start(Process("server", 0, 0, (), (), 1, ("sh", "-c", wordy), {}, str(log)), Identity("server", 0))
        older = log.with_name("server-0.log.1")
        while not older.exists():
            assert agent.exits() == []
        first = older.stat().st_ino
        while older.stat().st_ino == first:
            assert agent.exits() == []
    finally:
        agent.kill(["server/0"])
        agent.close()
    assert older.stat().st_size > 1 << 20 and not stacks.read_bytes()
    assert sorted(path.name for path in logs.iterdir()) == [
        *("server-0.log", "server-0.log.1", "server-0.stacks", "server-0.stacks.1")
    ]


def test_what_a_process_without_a_log_prints_takes_no_more_room_than_a_log(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(local, "SIZES_INTERVAL_S", 0.0)
    run, go_on = make_run(tmp_path / "run", "log.max_mb=1"), tmp_path / "go on"
    wordy = f"yes before | head -n 200000; echo last; until [ -e '{go_on}' ]; do sleep 0.01; done; echo after; sleep 9"
    agent = local.LocalAgent(run, "secret", write_logs=False)
    try:
        agent.start(Process("server", 0, 0, (), (), 1, ("sh", "-c", wordy), {}, ""), Identity("server", 0))
        output = agent._alive["server/0"]._output.fileno()
        while agent.last_lines("server/0", 1) != ["last"]:
            time.sleep(0.01)
        assert os.fstat(output).st_size > 1 << 20
        assert agent.exits() == [] and os.fstat(output).st_size == 0
        assert agent.last_lines("server/0", 2) == ["before", "last"], "they are shown all the same"
        go_on.touch()
        while agent.last_lines("server/0", 1) != ["after"]:
            time.sleep(0.01)
        assert os.fstat(output).st_size == len("after\n"), "there is no hole where the others were"
        assert agent.last_lines("server/0", 3) == ["before", "last", "after"]
    finally:
        agent.kill(["server/0"])
        agent.close()
