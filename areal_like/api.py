"""The Python door: `run("grpo.yaml", ["actor.lr=1e-4"])` does what the command does, in a process of its own.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import IO, Any, NamedTuple

from areal_like.config.problems import ConfigError
from areal_like.process.command_result import PLANNED, RESULT
from areal_like.process.exit_codes import BAD_CONFIGURATION, DONE, INTERRUPTED, STOPPED_EARLY

MAX_ERROR_LENGTH = 1 << 16
NOT_A_RUN = ("--multirun", "-m", "--help", "-h", "--version", "--cfg", "--explain", "--schema", "serve", "chat", "keys")
"""Words of the command that ask for something else than one run, or the plan of one."""
COMMAND = (sys.executable, "-m", "launcher")


class RunRefused(ConfigError):
    """A run that was not started, or could not begin, because of its configuration."""

    def __init__(self, text: str) -> None:
        super().__init__([])
        self.args = (text,)

    def text(self) -> str:
        return str(self.args[0]) if self.args else ""


class RunFailed(Exception):
    """A run that ended by a failure; `directory` is None where it never had one."""

    def __init__(self, text: str, exit_code: int, directory: Path | None) -> None:
        super().__init__(text)
        self.exit_code, self.directory = exit_code, directory


class RunResult(NamedTuple):
    """A run that is done, was stopped early with a checkpoint, or is only planned (`outcome` says which)."""

    directory: Path
    """Of a plan: the one that the run would have."""
    outcome: str
    score: float | None
    """The last held-out score."""
    summary: dict[str, Any]
    """What summary.json says."""

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per step, as in metrics.jsonl."""
        from areal_like.observe.reading import read_metrics

        return read_metrics(self.directory)


def run(config: str | Path, overrides: Sequence[str] = (), *, schema: str | None = None) -> RunResult:
    """Trains; what it has to say appears as it would in a terminal. Raises RunRefused (a ConfigError) where the command
    would exit with 2, RunFailed where it would with 1, and KeyboardInterrupt where it was interrupted.

    `--replace` and `--dry-run` may stand among the overrides. A dry run shows the plan and returns "planned"."""
    for word in overrides:
        if word.partition("=")[0] in NOT_A_RUN:
            ways = "overrides, --replace and --dry-run; for the rest there is `python -m launcher`"
            raise RunRefused(f"overrides: {word} asks for no single run; run() takes {ways}")
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
    """What it wrote to stderr."""
    outcome: str = ""
    """What it said of itself; nothing where it did not come so far."""

    def summary(self) -> dict[str, Any]:
        """Empty where the run did not come so far."""
        path = self.directory / "summary.json" if self.directory is not None else None
        if path is None or not path.is_file():
            return {}
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return said


def run_command(words: Sequence[str]) -> CommandResult:
    """`python -m launcher` with these words, in a process group of its own; passes on what it says and what signals
    this process gets. It stops when this process dies."""
    with TemporaryDirectory(prefix="areal-like-") as folder:
        result = Path(folder) / "result.json"
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
        errors: list[str] = []
        readers = [threading.Thread(target=_pass_on, args=(process.stderr, sys.stderr, errors))]
        if process.stdout is not None:
            readers.append(threading.Thread(target=_pass_on, args=(process.stdout, sys.stdout, None)))
        for reader in readers:
            reader.start()
        with _signals_to(process):
            code = process.wait()
        for reader in readers:
            reader.join()
        said = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    directory = Path(said["directory"]) if said else None
    return CommandResult(code, directory, "".join(errors)[-MAX_ERROR_LENGTH:].strip(), said.get("outcome", ""))


def _is_a_file(stream: Any) -> bool:
    """A notebook's stdout is none; what is written there has to be passed on."""
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
    """Should this process be killed, the run ends as if it had been told to."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    set_parent_death_signal = 1
    return lambda: prctl(set_parent_death_signal, int(signal.SIGTERM), 0, 0, 0)


@contextmanager
def _signals_to(process: subprocess.Popen[str]) -> Iterator[None]:
    """Signals can be taken by the main thread alone; in another one the run goes on until it is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _import_path() -> str:
    folder = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
