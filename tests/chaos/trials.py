"""Tries a case: starts the run, lets the case happen, and asks whether all is as it must be."""

import json
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from areal_like.rollout.audit import audit
from areal_like.rollout.ledger import read_ledger
from tests.chaos.cases import CHECKPOINT, DISK, ENDS_THE_RUN, Case, steps_of
from tests.chaos.disturbances import Missed, disturb
from tests.chaos.surroundings import NotHere, Surroundings, surroundings
from tests.ring.start import Running, command, environment, left_behind, listening_ports, running

COMPLETE, RESUMED, MISSED, NOT_RUN, FAILED = "complete", "resumed", "missed", "not run", "failed"
LIMIT_S = 600.0
LEFT_S = 60.0
MAX_STALENESS = 2
CACHE_OF_TORCH = "torchinductor_"


@dataclass
class Result:
    case: Case
    outcome: str
    seconds: float
    whom: str = ""
    attempts: int = 0
    problems: list[str] = field(default_factory=list)
    folder: str = ""
    """Where a failed one is kept."""
    commit: str = ""
    """Of the code that was tried."""

    def line(self) -> str:
        own = {name: value for name, value in vars(self).items() if name != "case"}
        return json.dumps({**asdict(self.case), "text": self.case.text, **own})


def attempt(case: Case, folder: Path) -> Result:
    """The folder stays if the case fails."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    result = Result(case, FAILED, 0.0)
    try:
        with surroundings(case, folder) as around:
            _try(case, around, result)
    except NotHere as why:
        result.outcome, result.whom = NOT_RUN, str(why)
    except (AssertionError, OSError, TimeoutError, subprocess.TimeoutExpired, ValueError, KeyError) as fault:
        result.problems.append(f"{type(fault).__name__}: {fault}"[:2000])
    if result.problems:
        result.outcome, result.folder = FAILED, str(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _try(case: Case, around: Surroundings, result: Result) -> None:
    folder = around.folder
    words = [*around.schema, *around.words]
    with running(folder, *words, config=around.config, **around.environment) as ring:
        ports: set[int] = set()
        try:
            result.whom = disturb(case, around, ring)
            ports = listening_ports(ring.pids())
        except Missed as why:
            result.outcome, result.whom = MISSED, str(why)
        directory = ring.directory
        code = _wait(ring)
        output = ring.text()
    if (directory / "run.json").exists():
        result.problems += [f"left behind: {each}" for each in left_behind(directory, ports, LEFT_S)]
    may_end = case.action in (CHECKPOINT, DISK) or (case.target, case.action) in ENDS_THE_RUN
    if code == 0:
        result.outcome = MISSED if result.outcome == MISSED else COMPLETE
    elif not may_end:
        result.problems.append(f"exit code {code}: {output[-1500:]}")
    elif not result.problems:
        result.outcome = RESUMED
        if case.action == DISK and "No space left" not in output:
            result.problems.append(f"the run does not say that its disk is full: {output[-1500:]}")
        _resume(around, directory, result)
    result.problems += check(directory, steps_of(case.kind))
    left = [each.name for each in (around.folder / "tmp").iterdir() if not each.name.startswith(CACHE_OF_TORCH)]
    result.problems += [f"left behind: temporary file {name}" for name in left]
    attempts = directory / "attempt.json"
    result.attempts = json.loads(attempts.read_text()).get("attempt", 0) if attempts.exists() else 0


def _wait(ring: Running) -> int:
    try:
        return ring.process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the run did not end within {LIMIT_S:g} s: {ring.text()[-1500:]}") from None


def _resume(around: Surroundings, directory: Path, result: Result) -> None:
    """By `resume=RUN`; by the same command where there is no checkpoint yet, which `resume=` would refuse."""
    again = command(f"resume={directory}", *around.schema, config=None)
    if not list(directory.glob("checkpoints/step_*/.complete")):
        again = command("trial_name=t", *around.schema, *around.words, config=around.config)
    done = subprocess.run(
        again,
        cwd=around.folder,
        env=environment(around.folder, **around.environment),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    (around.folder / "resumed.output").write_text(done.stdout + done.stderr)
    if done.returncode:
        result.problems.append(f"resume= ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    result.problems += [f"left behind by resume=: {each}" for each in left_behind(directory, set(), LEFT_S)]


def check(directory: Path, steps: int) -> list[str]:
    """Problems of a run that is complete: its steps, its ledger."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    trained = [line["step"] for line in lines if "train/loss" in line]
    problems = []
    if trained != list(range(1, steps + 1)):
        problems.append(f"metrics.jsonl has the steps {trained}, not 1 to {steps}")
    if not (directory / "checkpoints" / f"step_{steps:06}" / ".complete").exists():
        problems.append(f"there is no complete checkpoint of step {steps}")
    events: list[dict[str, Any]] = list(read_ledger(directory / "rollouts" / "ledger.jsonl"))
    problems += [f"ledger: {problem}" for problem in audit(events, MAX_STALENESS)]
    if json.loads((directory / "summary.json").read_text())["exit_code"] != 0:
        problems.append("summary.json does not say that the run is done")
    return problems
