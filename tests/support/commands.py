"""The command line for tests: in this process, or in a subprocess."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.cli import main

if TYPE_CHECKING:
    import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
AREAL = REPOSITORY / "tests" / "config" / "areal_files"


class Done(NamedTuple):
    """Result of a command."""

    code: int
    out: str
    err: str


class Run:
    """`python -m launcher ...`, in this process."""

    def __init__(self, capsys: "pytest.CaptureFixture[str]") -> None:
        self.capsys = capsys

    def __call__(self, *words: str | Path) -> Done:
        self.capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = self.capsys.readouterr()
        return Done(code, out, err)

    def answer(self, *words: str | Path) -> str:
        """The output of a command that must succeed without any error output."""
        done = self(*words)
        assert (done.code, done.err) == (0, "")
        return done.out

    def refusal(self, *words: str | Path) -> str:
        """The error output of a command that must be refused."""
        done = self(*words)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err
        return done.err


def command_runner(folder: Path, capsys: "pytest.CaptureFixture[str]", monkeypatch: "pytest.MonkeyPatch") -> Run:
    """The command in an empty folder, with no keys in the environment."""
    monkeypatch.chdir(folder)
    for name in ("WANDB_API_KEY", "SWANLAB_API_KEY", "HF_TOKEN", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Run(capsys)


def process(
    *words: str, command: Sequence[str] = (sys.executable, "-m", "launcher")
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a subprocess, in the current folder."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=60, check=False)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a subprocess: subreapers, guardians and limits would change the process of the tests."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
