"""Figures of whole runs, started by `python -m launcher` as a user starts them: weight updates, the difference between
sampler and trainer, the time to the first step."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from areal_like.serving.engines.external.installations import find_installation
from tests.gpu.decode import generate
from tests.gpu.machine import ROOT
from tests.gpu.models import QWEN3_0_6B, TINY, write_model
from tests.gpu.report import Aim, CannotRun, Report
from tests.support.engine_environments import distribution

RUN_LIMIT_S = 280
STEPS, SMALL_STEPS = 8, 3
WARM_UP = 2
"""Updates that are not counted."""
PUBLISH_S, STALL_MS, SERVED_S = Aim(most=0.1), Aim(most=10), Aim(most=0.2)
FIRST_STEP_S = Aim(most=60)
LOGPROBS_OFF = Aim(most=0.05)
"""Mean difference per token of two programs in bfloat16."""
WHOLE = "from the end of the training step until all servers answer with them"
REWARD = '''"""Any reward that differs between the answers of random weights, so that there is something to train on."""


def reward(prompt, completion):
    return float(len(completion) % 2)
'''
STARTED = {"rollout-0": " rows, ", "server-0": "ready at", "trainer-0": "training from step"}
"""Log -> words of the line that says that its process is ready."""


class Finished(NamedTuple):
    """A run that has ended well."""

    began: float
    directory: Path
    lines: list[dict[str, Any]]

    def values(self, metric: str, first: int = 0) -> list[float]:
        return [line[metric] for line in self.lines if metric in line][first:]


def update(report: Report) -> None:
    """By each transport."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = write_model(Path(name) / "model", TINY if report.small else QWEN3_0_6B)
        for mode in ("disk", "collective"):
            attempt(report, mode, partial(updates, report, Path(name), folder, mode, "embedded"))


def vllm(report: Report) -> None:
    external(report, "vllm")


def sglang(report: Report) -> None:
    external(report, "sglang")


def external(report: Report, engine: str) -> None:
    try:
        found = find_installation(distribution(engine), None, Path.cwd(), torch.cuda.is_available())
    except ValueError as none:
        raise CannotRun(str(none)) from none
    report.fact("engine", {"name": engine, "version": found.version, "python": found.python})
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = write_model(Path(name) / "model", TINY if report.small else QWEN3_0_6B)
        for mode in ("collective", "disk"):
            attempt(report, mode, partial(updates, report, Path(name), folder, mode, engine))
    attempt(report, "generation", partial(generate, report, engine))


def first_step(report: Report) -> None:
    """The quickstart, and the same with a model of real size."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        root = Path(name)
        started(report, "quickstart", run(root, "quickstart", "total_train_steps=1", "evaluator.freq_steps=null"))
        if report.small:
            return
        folder = write_model(root / "model", QWEN3_0_6B)
        words = [*sized(root, folder, "embedded", small=False), "total_train_steps=1", *report.words]
        started(report, "Qwen3-0.6B's shape", run(root, "large", *words))


def attempt(report: Report, name: str, work: Callable[[], None]) -> None:
    """What is left of a part goes on when this fails."""
    try:
        work()
    except Exception as fault:
        report.limit(f"{name}: failures", 1, Aim(most=0), note=f"{type(fault).__name__}: {fault}"[-1500:])


def updates(report: Report, root: Path, folder: Path, mode: str, engine: str) -> None:
    steps = SMALL_STEPS if report.small else STEPS
    words = [*sized(root, folder, engine, report.small), *report.words]
    ended = run(root, f"{engine}-{mode}", *words, f"actor.weight_update_mode={mode}", f"total_train_steps={steps}")
    skipped = 0 if report.small else WARM_UP
    publish, delay = (ended.values(f"perf/{name}_s", skipped) for name in ("publish", "serve_delay"))
    stall = ended.values("perf/update_stall_s", skipped)
    report.figure(f"{mode}: publish", median(publish), "s", PUBLISH_S, note="the trainer waits for it")
    report.figure(f"{mode}: stall", 1000 * median(stall), "ms", STALL_MS, note="no tokens are generated")
    report.figure(f"{mode}: served after", median(delay), "s", SERVED_S, note=WHOLE)
    report.figure(f"{mode}: loaded beside generation in", median(ended.values("perf/update_load_s", skipped)), "s")
    difference = ended.values("offpolicy/logprob_diff_mean")
    report.limit(
        f"{mode}: sampler and trainer differ by, mean",
        max(difference),
        LOGPROBS_OFF,
        note=f"at most {max(ended.values('offpolicy/logprob_diff_max')):.2g}",
    )
    report.figure(f"{mode}: a step of the run", median(ended.values("perf/step_s", skipped)), "s")
    report.fact(f"{mode}: transport", logged(ended.directory, "trainer-0", "weights go through "))
    report.fact(f"{mode}: path", logged(ended.directory, "rollout-0", "weights go to "))


def sized(root: Path, folder: Path, engine: str, small: bool) -> list[str]:
    """A run of the model in the folder, of few steps, whose answers are random."""
    (root / "any_reward.py").write_text(REWARD, encoding="utf-8")
    size, samples, new = (4, 2, 8) if small else (16, 8, 128)
    return [
        *(f"actor.path={folder}", "actor.dtype=bfloat16", "actor.lr=1e-6", f"rollout={engine}"),
        *(f"train_dataset.batch_size={size}", f"gconfig.n_samples={samples}", f"gconfig.max_new_tokens={new}"),
        *("gconfig.temperature=1.0", "reward.name=any_reward.py:reward", "valid_dataset=null"),
        *("evaluator.freq_steps=null", "recover.mode=disabled", "tracker=none", "rollout.setup_timeout=600"),
    ]


def run(root: Path, trial: str, *words: str) -> Finished:
    """Raises RuntimeError with the end of its output if it fails."""
    command = [sys.executable, "-m", "launcher", "--config", "grpo.yaml", f"trial_name={trial}", *words]
    found = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": found, "XDG_STATE_HOME": str(root / "state"), "PYTHONWARNINGS": "ignore"}
    output = root / f"{trial}.output"
    began = time.time()
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, f"cluster.fileroot={root}/runs"],
            cwd=root,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the run took over {RUN_LIMIT_S} s:\n{_end_of(output)}") from None
    finally:
        process.kill()  # the guardian: the launcher ends all that belongs to the run when it is gone
    if code:
        raise RuntimeError(f"the run ended with {code}:\n{_end_of(output)}")
    (directory,) = (root / "runs").glob(f"*/{trial}")
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return Finished(began, directory, [line for line in lines if "train/loss" in line or "perf/step_s" in line])


def started(report: Report, name: str, ended: Finished) -> None:
    first = ended.lines[0]["time"] - ended.began
    parts = {log: when for log, words in STARTED.items() if (when := _when(ended, log, words)) is not None}
    note = ", ".join(f"{log} ready after {when:.1f}" for log, when in parts.items())
    report.figure(f"{name}: from the command to the first step", first, "s", FIRST_STEP_S, note=note)


def logged(directory: Path, log: str, words: str) -> str | None:
    """The rest of the first line of a log after these words."""
    path = directory / "logs" / f"{log}.log"
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return next((line.partition(words)[2] for line in lines if words in line), None)


def _when(ended: Finished, log: str, words: str) -> float | None:
    path = ended.directory / "logs" / f"{log}.log"
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        if words in line:
            day, clock = line.split()[:2]
            seconds, _, thousandths = clock.partition(",")
            at = time.mktime(time.strptime(f"{day} {seconds}", "%Y-%m-%d %H:%M:%S")) + int(thousandths) / 1000
            return at - ended.began
    return None


def _end_of(output: Path) -> str:
    return output.read_text(errors="replace")[-1500:]
