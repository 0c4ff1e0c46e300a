"""A closed terminal or a full output does not break a run."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from launcher.terminal import write_line
from tests.support.fake_runs import FakeRun, environment_of, leftover_processes

WORDS = ("--config", "grpo.yaml", "tracker=none", "recover.mode=auto")


class Terminal:
    """A run of fake processes that was started by hand on its own terminal."""

    def __init__(self, root: Path, ignores_hangup: bool, **messages: object) -> None:
        self.ours, theirs = pty.openpty()

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if ignores_hangup:  # as nohup does
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

        inherited = {name: value for name, value in os.environ.items() if name != "CI"}
        process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fake_runs", *WORDS],
            cwd=root,
            env=inherited | environment_of(root, **messages) | {"TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            text=True,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        self.run = FakeRun(process, root)
        self._output = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reads = True
        self._reader.start()

    def _read(self) -> None:
        while self._reads:
            try:
                self._output += os.read(self.ours, 4096)
            except OSError:
                return  # the other end is closed

    def shows(self, words: str) -> bool:
        return words.encode() in self._output

    def close(self) -> None:
        """As by the x of its window."""
        self._reads = False
        self._reader.join(60)  # it comes back with the next thing that is drawn
        os.close(self.ours)


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.mark.parametrize("ignores_hangup", [False, True], ids=["as it is", "under nohup"])
def test_a_closed_terminal_stops_a_run_with_a_checkpoint_unless_under_nohup(tmp_path, ignores_hangup):
    terminal = Terminal(tmp_path, ignores_hangup, steps=30, step_s=0.2)
    run = terminal.run
    try:
        run.until_true(lambda: terminal.shows("step ") and terminal.shows("/"))
        run.until("metrics/trainer-0.jsonl")
        terminal.close()
        code = run.process.wait(120)
    finally:
        stop(run.process)
    summary = json.loads((run.directory / "summary.json").read_text())
    steps = [json.loads(line)["step"] for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, summary["steps"] + 1))
    if ignores_hangup:
        assert (code, summary["outcome"], len(steps)) == (0, "done", 30)
    else:
        assert (code, summary["outcome"]) == (75, "stopped")
        assert 0 < len(steps) < 30
    assert summary["model"].endswith(f"step_{len(steps):06d}"), "there is a checkpoint of the last step"
    assert leftover_processes(tmp_path) == {}


@pytest.mark.parametrize("moment", ["before anything is started", "before the first step"])
def test_a_terminal_closed_early_leaves_no_process(tmp_path, moment):
    terminal = Terminal(tmp_path, False, step_s=60)
    run = terminal.run
    try:
        if moment == "before the first step":
            run.until_true(lambda: terminal.shows("server/0 ready"))
        run.process.send_signal(signal.SIGHUP)
        os.close(terminal.ours)
        code = run.process.wait(120)
    finally:
        stop(run.process)
    assert code in ((75,) if moment == "before the first step" else (75, -signal.SIGHUP))
    assert leftover_processes(tmp_path) == {}


def test_a_run_continues_when_its_output_disk_is_full(tmp_path):
    environment = os.environ | environment_of(tmp_path, steps=5)
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tests.support.fake_runs", *WORDS]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=full, stderr=full, text=True)
        try:
            code = process.wait(120)
        finally:
            process.kill()
    directory = FakeRun(process, tmp_path).directory
    summary = json.loads((directory / "summary.json").read_text())
    assert (code, summary["outcome"], summary["steps"]) == (0, "done", 5)
    assert leftover_processes(tmp_path) == {}


def test_a_refusal_with_closed_output_has_its_exit_code(tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tests.support.fake_runs", *WORDS, "actor.lr=fast"]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | environment_of(tmp_path), stderr=full, check=False
        )
    assert done.returncode == 2


def test_a_line_is_written_at_once_and_a_closed_pipe_is_no_error():
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as stream:
        write_line("so it is", stream)
        assert os.read(reads, 100) == b"so it is\n"
        os.close(reads)
        before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        write_line("nobody there", stream)
        write_line("nobody there", stream)
        signal.signal(signal.SIGPIPE, before)
