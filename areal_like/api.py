"""Python API: `run("grpo.yaml", ["actor.lr=1e-4"])` starts the command in a subprocess.

from areal_like import run

result = run("grpo.yaml", ["actor.lr=1e-4", "total_train_steps=40"])
print(result.score, result.directory)
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

from areal_like.config.problems import ConfigError
from areal_like.process.command_result import PLANNED, RESULT
from areal_like.process.exit_codes import BAD_CONFIGURATION, DONE, INTERRUPTED, STOPPED_EARLY
from areal_like.process.stop_signals import HANDLED_SIGNALS, handled, stop_code
from areal_like.process.temporary_folders import RESULT as RESULT_FOLDER
from areal_like.process.temporary_folders import temporary_folder

MAX_ERROR_LENGTH = 1 << 16
NOT_A_RUN = ("--multirun", "-m", "--help", "-h", "--version", "--cfg", "--explain", "--schema", "serve", "chat", "keys")
"""Arguments of the command that `run` does not take."""
COMMAND = (sys.executable, "-m", "launcher")


class RunRefused(ConfigError):
    """A run that could not start because of its configuration."""

    def __init__(self, text: str) -> None:
        super().__init__([])
        self.args = (text,)

    def text(self) -> str:
        return str(self.args[0]) if self.args else ""


class RunFailed(Exception):
    """A run that failed; `directory` is None if it had none yet."""

    def __init__(self, text: str, exit_code: int, directory: Path | None) -> None:
        super().__init__(text)
        self.exit_code, self.directory = exit_code, directory


class RunResult(NamedTuple):
    """A run that is complete, was stopped early with a checkpoint, or is only planned (see `outcome`)."""

    directory: Path
    """Of a plan: the directory that the run would have."""
    outcome: str
    score: float | None
    """The last held-out score."""
    summary: dict[str, Any]
    """Content of summary.json."""

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per step, as in metrics.jsonl."""
        from areal_like.observe.reading import read_metrics

        return read_metrics(self.directory)


def run(config: str | Path, overrides: Sequence[str] = (), *, schema: str | None = None) -> RunResult:
    """Runs an experiment; its output appears as in a terminal. Raises RunRefused (a ConfigError) for
    exit code 2, RunFailed for 1, and KeyboardInterrupt if it was interrupted.

    The overrides may contain `--replace` and `--dry-run`. A dry run shows the plan and returns "planned"."""
    for word in overrides:
        if word.partition("=")[0] in NOT_A_RUN:
            remedy = "overrides, --replace and --dry-run; for the rest there is `python -m launcher`"
            raise RunRefused(f"overrides: {word} does not start a single run; run() takes {remedy}")
    words = ["--config", str(config), *(["--schema", schema] if schema else []), *overrides]
    ended = run_command(words)
    if ended.exit_code == BAD_CONFIGURATION:
        raise RunRefused(ended.errors)
    if ended.exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    if ended.exit_code not in (DONE, STOPPED_EARLY) or ended.directory is None:
        raise RunFailed(ended.errors or f"exit code {ended.exit_code}", ended.exit_code, ended.directory)
    if ended.outcome == PLANNED:
        return RunResult(ended.directory, PLANNED, None, {})
    summary = ended.summary()
    return RunResult(ended.directory, summary["outcome"], summary["score"], summary)


class CommandResult(NamedTuple):
    """A command that has ended."""

    exit_code: int
    directory: Path | None
    errors: str
    """Its stderr."""
    outcome: str = ""
    """The outcome that it reported; empty if it ended before that."""
    stop_code: int = DONE
    """Not 0: this process was asked to stop meanwhile, and this is its exit code; the command may have ended first."""

    def summary(self) -> dict[str, Any]:
        """Content of summary.json; empty if the run ended before it was written."""
        path = self.directory / "summary.json" if self.directory is not None else None
        if path is None or not path.is_file():
            return {}
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return summary


def run_command(words: Sequence[str]) -> CommandResult:
    """Runs `python -m launcher` with these arguments in a new process group; forwards its output, and the signals that
    this process gets. It is stopped when this process dies."""
    signals, errors = ForwardedSignals(), list[str]()
    with temporary_folder(RESULT_FOLDER) as folder:
        result = folder / "result.json"
        with handled(HANDLED_SIGNALS, signals.forward):
            process = subprocess.Popen(
                [*COMMAND, *words],
                env={**os.environ, RESULT: str(result), "PYTHONPATH": _import_path()},
                stdin=subprocess.DEVNULL,
                stdout=None if _is_a_file(sys.stdout) else subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                process_group=0,
                preexec_fn=_stop_with_parent(),
            )
            signals.begin(process)
            readers = [threading.Thread(target=_pass_on, args=(process.stderr, sys.stderr, errors))]
            if process.stdout is not None:
                readers.append(threading.Thread(target=_pass_on, args=(process.stdout, sys.stdout, None)))
            for reader in readers:
                reader.start()
            code = process.wait()
        for reader in readers:
            reader.join()
        report = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    code = stop_code([-code]) or code  # killed by such a signal before it could handle it
    directory, text = Path(report["directory"]) if report else None, "".join(errors)[-MAX_ERROR_LENGTH:].strip()
    return CommandResult(code, directory, text, report.get("outcome", ""), stop_code(signals.received))


def _is_a_file(stream: Any) -> bool:
    """Whether a child process can inherit the stream: the stdout of a notebook is not a file."""
    try:
        own = sys.__stdout__
        return own is not None and stream is own and own.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


def _pass_on(source: IO[str], target: Any, kept: list[str] | None) -> None:
    with source:
        for line in source:
            target.write(line)
            target.flush()
            if kept is not None:
                kept.append(line)


def _stop_with_parent() -> Callable[[], None]:
    """For the child: SIGTERM when this process dies."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    set_parent_death_signal = 1
    return lambda: prctl(set_parent_death_signal, int(signal.SIGTERM), 0, 0, 0)


class ForwardedSignals:
    """Those that come while a command runs, which is given each once."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._early: list[int] = []
        self._process: subprocess.Popen[str] | None = None

    def forward(self, number: int, _frame: FrameType | None) -> None:
        """A handler."""
        self.received.append(number)
        if self._process is None:
            self._early.append(number)
        elif self._process.poll() is None:
            self._process.send_signal(number)

    def begin(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        while self._early:
            process.send_signal(self._early.pop())


def _import_path() -> str:
    folder = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
