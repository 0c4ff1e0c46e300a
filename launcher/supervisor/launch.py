"""Runs one plan: locks the run directory, supervises its processes, reports how it ended."""

import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from areal_like.config.allocation.models import generates, only_evaluates
from areal_like.config.control_characters import escape_controls
from areal_like.config.loaded import Loaded
from areal_like.config.problems import plural
from areal_like.config.redact import scrub
from areal_like.process.checkpoint_files import step_of
from areal_like.process.command_result import write_result
from areal_like.process.exit_codes import FAILED
from areal_like.process.run import StartPoint, last_attempt
from areal_like.process.stop_signals import STOP_SIGNALS
from launcher.checks.epochs import data_end_text
from launcher.plan.plan import Plan
from launcher.runs.best_checkpoint import best_warning, link_best
from launcher.runs.checkpoints import complete_steps
from launcher.runs.env_file import run_environment
from launcher.runs.environment_record import write_environment_record
from launcher.runs.run_files import restore_configuration
from launcher.supervisor.discard import discard_unused_run
from launcher.supervisor.lifecycle import Lifecycle, RunEnding
from launcher.supervisor.locked_start import LockedStart, lock_start
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.supervisor.taken_over import lost_name_ending, taken_over_ending
from launcher.supervisor.write_errors import disk_is_full, write_error_text
from launcher.terminal import write_line

ENVIRONMENT_RECORD_TIMEOUT_S = 10.0


def launch(loaded: Loaded, plan: Plan, run_id: str, replace: bool = False) -> int:
    """Runs the plan to its end; returns the command's exit code."""
    start = lock_start(loaded, plan, run_id, replace)
    return start if isinstance(start, int) else _Launch(start).run()


class _Launch:
    """One run from its first process to its summary. Secrets are removed from all messages."""

    def __init__(self, begun: LockedStart) -> None:
        from areal_like.observe.diagnosis import RunDiagnosis
        from areal_like.observe.observer import Observer
        from areal_like.observe.progress import ProgressDisplay

        self.begun, self.loaded, self.locked = begun, begun.loaded, begun.locked
        self.plan, self.run_, self.start = self.locked.plan, self.locked.run, self.locked.start
        self.began = time.time()
        self.evaluates = only_evaluates(self.run_.config)
        config, batch = self.run_.config, self.plan.batch
        diagnosis = RunDiagnosis(config) if generates(config) else None
        self.progress = ProgressDisplay(
            batch.total_steps, batch.staleness_bound, diagnosis, max_failed_share=config.evaluator.max_failed_share
        )
        self.observer = Observer(
            self.run_,
            self.progress.step,
            self._evaluated,
            self.say,
            on_phase=self._phase,
            on_total=self._total,
            on_progress=self.progress.status,
            on_sample=self.say,
            clean=lambda text: self._clean(scrub(text)),
        )

    def run(self) -> int:
        self._announce()
        if self.start.attempt > 1:
            from areal_like.observe.joiner import rewind_metrics

            if (lost := taken_over_ending(self.run_, self.start.attempt)) is not None:
                return self._lost(lost)
            rewind_metrics(self.run_.directory, self.start.step, self.start.attempt - 1)
        config = self.run_.config
        recorder = threading.Thread(target=self._record_environment, daemon=True)
        policy = RestartPolicy("auto" if self.evaluates else config.recover.mode, config.recover.retries)
        lifecycle = Lifecycle(rewind_metrics=self.observer.rewind, on_start=recorder.start, on_poll=self.progress.tick)
        self.observer.start()
        ending = self.begun.watch(policy, self.say, lifecycle)
        for number in STOP_SIGNALS:  # the ending is decided; Ctrl-C ends what is left of it
            signal.signal(number, signal.SIG_IGN)
        if ending.outcome == "lost":  # another launcher may use the directory
            return self._lost(ending)
        self.observer.drain()
        if (text := self.observer.taken_over()) is not None:  # meanwhile
            return self._lost(RunEnding("lost", FAILED, text))
        if (lost := lost_name_ending(self.run_, self.locked.names)) is not None:
            return self._lost(lost)
        best = link_best(self.run_)
        self.progress.close()
        if best is not None:
            write_line(best, sys.stdout)
        if (warning := best_warning(self.run_)) is not None:
            write_line(warning, sys.stderr)
        if ending.outcome == "failed" and disk_is_full(self.run_.directory) and "No space left" not in ending.message:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the process could not write a failure note
            ending = ending._replace(
                message=f"{write_error_text(full, self.run_.config, self.plan.run_dir)}\n{ending.message}"
            )
        ending = ending._replace(message=escape_controls(self._clean(ending.message)))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._finish(ending)
        if ending.outcome in ("refused", "failed") and self.observer.taken_over() is None:
            self._restore_configuration()
        if recorder.ident is not None:  # not started where the processes could not be
            recorder.join(ENVIRONMENT_RECORD_TIMEOUT_S)
        if discard_unused_run(self.locked, ending):
            write_line(f"no step was made; {self.run_.directory} was removed", sys.stderr)
        else:
            write_result(self.run_.directory, ending.outcome, ending.code, ending.message)
        self.locked.release()
        return ending.code

    def _lost(self, ending: RunEnding) -> int:
        self.progress.close()
        write_line(escape_controls(self._clean(ending.message)), sys.stderr)
        write_result(self.run_.directory, ending.outcome, ending.code, ending.message)
        self.locked.release(clears=False)
        return ending.code

    def say(self, text: str) -> None:
        self.progress.say(self._clean(text))

    def _restore_configuration(self) -> None:
        """Restores the configuration of the attempt before, unless a checkpoint was made with the new one."""
        directory, start = self.run_.directory, self.start
        if max(complete_steps(directory), default=0) > start.step or disk_is_full(directory):
            return
        if restore_configuration(directory, start.attempt):
            last, failed = f"attempt {start.attempt - 1}", f"attempt {start.attempt}"
            self.say(
                f"config.yaml was restored to that of {last}; that of {failed} is config.attempt-{start.attempt}.yaml. "
                "To resume with its changes, repeat them after resume="
            )

    def _evaluated(self, step: int, values: dict[str, Any]) -> None:
        self.progress.evaluation(step, values)
        link_best(self.run_)

    def _phase(self, what: str, at: float) -> None:
        self.progress.phase(what, at - self.began)

    def _total(self, steps: int) -> None:
        self.progress.set_total(steps)
        end = data_end_text(self.loaded, steps)
        if end is not None and end not in self.plan.warnings:
            self.say(f"  {end}")

    def _clean(self, text: str) -> str:
        return self.begun.clean(text)

    def _announce(self) -> None:
        config, start = self.run_.config, self.start
        name = f"{config.experiment_name}/{config.trial_name}"
        self.say(f"{name} in {self.run_.directory}")
        if start.attempt > 1:
            for line in (
                []
                if self.evaluates
                else continue_lines(start, self.plan.batch.total_steps, self.loaded.config.resume is not None)
            ):
                self.say(f"  {line}")
        for message in self.locked.messages:
            self.say(f"  {message}")

    def _record_environment(self) -> None:
        try:
            folders = [self.run_.folder, self.run_.cwd]
            attempt = self.start.attempt
            write_environment_record(self.run_.directory, folders, self.loaded.redactor, self._clean, attempt)
        except OSError as error:
            self.say(f"environment.txt: {error.strerror}; the environment of the run is not recorded")

    def _finish(self, ending: RunEnding) -> None:
        from areal_like.observe.summary import summarize_run

        attempts = last_attempt(self.run_.directory)
        try:
            text = summarize_run(
                self.run_.directory, ending.outcome, ending.code, self.began, attempts, ending.message or None
            )
        except OSError as error:
            why = write_error_text(error, self.run_.config, self.plan.run_dir)
            text = f"{ending.message}\nthe summary could not be written: {why}"
        if ending.outcome == "refused":
            write_line(ending.message, sys.stderr)
            return
        write_line(text, sys.stderr if ending.code else sys.stdout)
        if self.evaluates and ending.outcome == "done":
            from areal_like.rollout.evaluation.answer_folders import evaluated_names, saved_evaluation
            from launcher.runs.score_tables import score_table

            saved, names = saved_evaluation(self.run_.directory, None), evaluated_names(self.run_.directory)
            write_line("\n".join(score_table(saved, names)), sys.stdout)
        if ending.outcome == "done" and generates(self.run_.config):
            from launcher.runs.answer_upload import interruptible_upload, wanted_uploads

            for sink in wanted_uploads(self.run_.config):
                self.say(f"{sink.key}: uploading the answers; Ctrl-C ends that alone")
                self.say(interruptible_upload(sink, self.run_.directory, run_environment(self.run_.config, Path.cwd())))


def continue_lines(start: StartPoint, total: int | None, resumes: bool) -> list[str]:
    """Where a further attempt begins, and how many steps are done and follow. `resumes`: started with resume=."""
    attempt = f"(attempt {start.attempt})"
    if start.checkpoint is None:
        return [f"starting from the beginning {attempt}"]
    line = f"resuming from step {step_of(start.checkpoint.name)} {attempt}"
    if total is None:
        return [line]
    if start.step < total:
        return [
            f"{line}: {start.step} of {plural(total, 'step')} {'is' if start.step == 1 else 'are'} done, "
            f"{total - start.step} to go"
        ]
    replace = "" if resumes else ", --replace starts over"  # which resume= refuses
    more = f"total_train_steps={2 * total} trains {total} more{replace}"
    return [line, f"all {plural(total, 'step')} are done; {more}"]
