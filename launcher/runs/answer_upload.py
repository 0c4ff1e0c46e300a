"""Uploads the answers of a finished run, where `evaluator.save` wants it: to the Hugging Face Hub, and to the
Environments Hub."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import areal_like
from areal_like.config.redact import scrub

UPLOAD_LIMIT_S = 900.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Sink(NamedTuple):
    """`key` wants the upload, and `module` is its program."""

    key: str
    module: str


HF = Sink("evaluator.save.hf", "areal_like.rollout.evaluation.answer_upload")
ENV_HUB = Sink("evaluator.save.env_hub", "areal_like.rollout.evaluation.hub_push")


def wanted_uploads(config: Any) -> list[Sink]:
    save = config.evaluator.save
    return [*([HF] if save.hf is not None else []), *([ENV_HUB] if save.env_hub else [])]


def interruptible_upload(sink: Sink, directory: Path, environment: Mapping[str, str]) -> str:
    """A signal that asks to stop, which the launcher ignores once the run has ended, ends the upload."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.default_int_handler)
        return upload_answers(sink, directory, environment)
    except KeyboardInterrupt:
        return _failure_text(sink, directory, "it was interrupted")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def upload_answers(sink: Sink, directory: Path, environment: Mapping[str, str]) -> str:
    """Returns what to tell. A failed upload fails no run: the answers are in its directory, and the command of the
    upload can be repeated."""
    command = [sys.executable, "-m", sink.module, "--run-dir", str(directory)]
    path = os.pathsep.join([str(Path(areal_like.__file__).parents[1]), *filter(None, [environment.get("PYTHONPATH")])])
    variables = {**environment, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONPATH": path}
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=UPLOAD_LIMIT_S, check=False
        )
        lines, code = (done.stdout.strip() or done.stderr.strip()).splitlines(), done.returncode
    except subprocess.TimeoutExpired:
        lines, code = [f"no end within {UPLOAD_LIMIT_S:.0f} s"], 1
    last = scrub(lines[-1]) if lines else f"it ended with exit code {code}"
    if code == 0:
        return f"the answers of its evaluations are uploaded: {last}"
    return _failure_text(sink, directory, last)


def _failure_text(sink: Sink, directory: Path, why: str) -> str:
    again = f"python -m {sink.module} --run-dir {shlex.quote(str(directory))}"
    return f"{sink.key}: the answers could not be uploaded ({why}); repeat it: {again}"
