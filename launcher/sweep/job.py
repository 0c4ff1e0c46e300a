"""One job of a sweep: the function that Hydra calls for a point, in this process or in one of its launcher."""

import contextlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException

from areal_like.config.problems import ConfigError
from areal_like.config.redact import scrub
from areal_like.process.exit_codes import INTERRUPTED, STOPPED_EARLY
from launcher.sweep.hydra_session import outside_hydra
from launcher.sweep.points import SweepPoints
from launcher.sweep.request import Check, PointResult, RunDir, RunPoint
from launcher.terminal import write_line

RECORD = "point.json"


@dataclass(frozen=True)
class JobRecord:
    """The record file of a job, from which the table is made; another process may have written it."""

    sweep: str
    number: int
    trial: str
    values: Mapping[str, str]
    state: str = "running"
    objective: float | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    seconds: float = 0.0
    stop_code: int = 0
    """As in PointResult."""

    def write(self, directory: Path) -> None:
        half = directory / f"{RECORD}.tmp"
        half.write_text(json.dumps(asdict(self), indent=2, default=str) + "\n", encoding="utf-8")
        half.replace(directory / RECORD)


def records(directory: Path, sweep: str) -> list[JobRecord]:
    """The records of this sweep, by number."""
    all_records = [JobRecord(**json.loads(path.read_text(encoding="utf-8"))) for path in directory.rglob(RECORD)]
    return sorted((each for each in all_records if each.sweep == sweep), key=lambda each: each.number)


class PointFailed(CompactHydraException):
    """Signals an optimizing sweeper that a point has no objective."""


@dataclass(frozen=True)
class SweepJob:
    """The settings that all jobs of a sweep share."""

    sweep: str
    trial: str
    points: SweepPoints
    check: Check | None
    """Called just before a point starts; None where the check cannot give another result."""
    run_point: RunPoint
    run_dir: RunDir | None = None
    dry_run: bool = False
    quiet: bool = False
    argv: Sequence[str] = ()
    cwd: str = "."
    """Hydra's launchers may start processes in another directory."""

    def task(self) -> Callable[[Any], float | None]:
        def task(_composed: Any) -> float | None:
            return self.run()

        return task

    def run(self) -> float | None:
        settings = HydraConfig.get()
        number, directory = int(settings.job.num), Path(settings.runtime.output_dir)
        values = dict(text.partition("=")[::2] for text in settings.overrides.task)
        trial = f"{self.trial}-{number}"
        record = JobRecord(self.sweep, number, trial, values)
        record.write(directory)
        if not self.quiet and not self.dry_run:  # of a dry run the table comes first
            write_line(scrub(f"--- {trial}: {' '.join(settings.overrides.task) or 'no overrides'}"), sys.stdout)
        started = time.monotonic()
        with outside_hydra(self.argv), contextlib.chdir(self.cwd):
            ended = self._attempt(record, directory)
        ended = JobRecord(**{**asdict(ended), "seconds": round(time.monotonic() - started, 3)})
        ended.write(directory)
        return self._result_for_hydra(ended)

    def _attempt(self, record: JobRecord, directory: Path) -> JobRecord:
        overrides = with_trial_name(self.points.overrides(record.values), record.trial)
        try:
            if self.check and (problems := self.check(overrides)):
                raise ConfigError(problems)
            if self.run_dir and not self.dry_run:
                link_run(directory, self.run_dir(overrides, record.trial))
            result = self.run_point(overrides, record.trial, record.number)
            if result.run_dir is not None and not self.dry_run:
                link_run(directory, result.run_dir)
            return self._with_result(record, result)
        except KeyboardInterrupt:
            return _ended(record, "interrupted")
        except ConfigError as error:
            write_line(error.text(), sys.stderr)
            return _ended(record, "refused", error.text())
        except SystemExit as error:
            if error.code == STOPPED_EARLY:
                return _ended(record, "stopped early")
            return _ended(record, "failed", f"it exited with {error.code}")
        except Exception as error:
            traceback.print_exc()
            return _ended(record, "failed", f"{type(error).__name__}: {error}")

    def _with_result(self, record: JobRecord, result: PointResult) -> JobRecord:
        state, message = "done", ""
        if result.exit_code == INTERRUPTED:
            state = "interrupted"
        elif result.exit_code == STOPPED_EARLY:
            state = "stopped early"
        elif result.exit_code:
            state, message = "failed", f"exit code {result.exit_code}"
        elif self.points.optimizing and not self.dry_run and not _finite(result.objective):
            state, message = "failed", f"the objective is {result.objective}, and the sweeper needs a number"
        return JobRecord(
            **{
                **asdict(record),
                "state": "planned" if self.dry_run and state == "done" else state,
                "message": message,
                "objective": result.objective,
                "summary": dict(result.summary),
                "stop_code": result.stop_code,
            }
        )

    def _result_for_hydra(self, record: JobRecord) -> float | None:
        """The result for Hydra. Only optimizing sweepers get failures, as they have a limit for them: the basic sweeper
        would skip its next batch after one."""
        if record.state == "interrupted" or record.stop_code == INTERRUPTED:
            raise KeyboardInterrupt
        if record.state == "stopped early" or record.stop_code:
            raise SystemExit(STOPPED_EARLY)
        if record.state == "planned":
            return 0.0 if self.points.optimizing else None
        if record.state != "done" and self.points.optimizing:
            raise PointFailed(f"{record.trial} {record.state}: {record.message}")
        return record.objective if record.state == "done" else None


def _ended(record: JobRecord, state: str, message: str = "") -> JobRecord:
    return JobRecord(**{**asdict(record), "state": state, "message": message})


def _finite(objective: float | None) -> bool:
    return objective is not None and math.isfinite(objective)


def with_trial_name(overrides: Sequence[str], trial: str) -> list[str]:
    """The overrides with the trial name of the point."""
    others = [text for text in overrides if text.partition("=")[0].lstrip("+~") != "trial_name"]
    return [*others, f"trial_name={trial}"]


def link_run(directory: Path, run_dir: str | Path) -> None:
    """Links `<job>/run` to the run's directory."""
    path = directory / "run"
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(Path(run_dir).resolve(), directory.resolve()))
