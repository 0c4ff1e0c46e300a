"""Runs a sweep: checks the known points, runs them by Hydra's sweeper and launcher, prints a table of results.

code = sweep(SweepRequest(overrides, trial="r0001", hydra_overrides=..., groups=...), check, run_point)
"""

import itertools
import os
import signal
import sys
import traceback
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from areal_like.config.problems import ConfigError
from areal_like.config.redact import scrub
from areal_like.process.exit_codes import INTERRUPTED, STOPPED_EARLY
from areal_like.process.stop_signals import STOP_SIGNALS, handled
from areal_like.process.temporary_folders import SWEEP, temporary_folder
from launcher.sweep.hydra_session import quoted, run_multirun
from launcher.sweep.job import SweepJob, records
from launcher.sweep.plan import SweepPlan, plan_sweep
from launcher.sweep.report import check_points, closing_lines, opening_lines, points_not_started
from launcher.sweep.request import Check, RunPoint, SweepRequest
from launcher.terminal import write_line


def sweep(
    request: SweepRequest, check: Check, run_point: RunPoint, out: TextIO | None = None, err: TextIO | None = None
) -> int:
    """Returns 0 if all points are done, 1 if some failed, 2 for an invalid configuration, 75 or 130 if stopped."""
    out, err = out or sys.stdout, err or sys.stderr

    def say(line: str) -> None:
        if not request.quiet:
            write_line(scrub(line), out)

    try:
        plan = plan_sweep(request)
    except ConfigError as error:
        print(error.text() if request.dry_run else error.refusal_text(), file=err)
        return 2
    points, settings = plan.points, plan.settings
    sample = points.sample(request.checked_at_most)
    if len(sample) > 20:
        say(f"checking {len(sample)} {'corners' if points.optimizing else 'points'} ...")
    if lines := check_points(points, sample, check):
        print("\n".join(lines), file=err)
        return 2
    with ExitStack() as stack:
        if request.dry_run:
            directory = stack.enter_context(temporary_folder(SWEEP))
        else:
            directory = new_sweep_directory(Path(settings.directory))
        for line in opening_lines(request, plan, len(sample), directory):
            say(line)
        certain = request.dry_run and not points.optimizing and len(sample) == len(points)
        job = SweepJob(
            sweep=uuid.uuid4().hex,
            trial=request.trial,
            points=points,
            check=None if certain else check,
            run_point=run_point,
            run_dir=request.run_dir,
            dry_run=request.dry_run,
            quiet=request.quiet,
            argv=tuple(sys.argv),
            cwd=os.getcwd(),
        )
        code = _start(plan, directory, job)
        stack.enter_context(handled(STOP_SIGNALS, signal.SIG_IGN))  # it has ended
        rows = records(directory, job.sweep)
        last = closing_lines(rows, plan, code)
        for line in last:
            say(line)
        if not request.dry_run:
            (directory / "table.txt").write_text("\n".join(last) + "\n", encoding="utf-8")
    if code in (INTERRUPTED, STOPPED_EARLY):
        return code
    ended_well = all(row.state in ("done", "planned") for row in rows)
    return int(code != 0 or not ended_well or bool(points_not_started(rows, plan)))


def new_sweep_directory(directory: Path) -> Path:
    """A new directory for this sweep, also where another one uses the same `hydra.sweep.dir` or second."""
    for path in itertools.chain([directory], (Path(f"{directory}-{number}") for number in itertools.count(2))):
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if path.is_dir() and not any(path.iterdir()):
                return path
    raise AssertionError("unreachable")


def _start(plan: SweepPlan, directory: Path, job: SweepJob) -> int:
    arguments = [swept_key.argument for swept_key in plan.points.swept_keys]
    arguments += [*plan.hydra_overrides, f"hydra.sweep.dir={quoted(str(directory.absolute()))}"]
    try:
        return run_multirun(plan.root, arguments, job.task())
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # only with HYDRA_FULL_ERROR=1; else Hydra has printed it
        traceback.print_exc()
        return 1
