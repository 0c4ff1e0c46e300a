"""Checkpoints: when one is due, what it contains, and which older ones are deleted.

A checkpoint is a folder that transformers can load, with the resume state in `resume/`. Each rank writes its part of
that under a temporary name; the first rank writes the rest and renames the folder when it is complete. With
`weights.save_async` training goes on meanwhile.
"""

import errno
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from safetensors import SafetensorError

from areal_like.config.benchmarks import best_benchmark
from areal_like.models import model_folder
from areal_like.process import pulse
from areal_like.process.atomic_file import fsync_path
from areal_like.process.checkpoint_files import (
    KEPT,
    RESUME,
    TRAINER,
    can_resume,
    complete_checkpoints,
    drop_resume_parts,
    folder_name,
    has_dropped_parts,
    write_manifest,
)
from areal_like.process.errors import Failure, FinalFailure
from areal_like.process.hashed_files import FilePart, HashedFiles
from areal_like.process.identity import launched_attempt
from areal_like.process.interval_timer import IntervalTimer
from areal_like.process.ownership import Ownership
from areal_like.process.run import Run
from areal_like.process.run_links import make_free_folder
from areal_like.process.wait import NamedWait
from areal_like.training.checkpoint_content import CheckpointContent, CheckpointPurpose
from areal_like.training.checkpoint_removal import discard, put_aside, remove, remove_leftovers
from areal_like.training.engine import TrainEngine
from areal_like.training.engine_snapshot import EngineSnapshot
from areal_like.training.host_copies import HOST, HostCopies
from areal_like.training.progress import TrainingProgress
from areal_like.training.rank_vote import RankVote
from areal_like.training.resume_state import engine_scalars, restore_engine
from areal_like.training.world import World

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
WRITE_TIMEOUTS = 10
"""A checkpoint may take so many times the timeout of ranks."""
CHECK_INTERVAL_S = 1.0
WRITE = "a checkpoint to be written"

log = logging.getLogger(__name__)


class CheckpointNotWritten(FinalFailure):
    """A due checkpoint could not be written."""


NOT_DUE = CheckpointPurpose(False, False)


class LastCheckpoint(NamedTuple):
    """The newest checkpoint of this attempt."""

    step: int
    due: CheckpointPurpose

    def covers(self, step: int, due: CheckpointPurpose) -> bool:
        """Whether it contains all that this step's checkpoint would."""
        return self.step == step and self.due.to_resume >= due.to_resume and self.due.to_keep >= due.to_keep


class CheckpointManager:
    def __init__(
        self, run: Run, world: World, steps_per_epoch: int, others: Mapping[str, IntervalTimer] = MappingProxyType({})
    ) -> None:
        """`others` are further timers whose state is saved and restored. All ranks must create one."""
        self._run, self._root, self._world = run, run.checkpoints, world
        self._start, self._config, self._weights_config = run.start_point(), run.config.recover, run.config.weights
        self._resumes = run.config.recover.mode != "disabled"
        self._recover = IntervalTimer(run.config.recover, steps_per_epoch)
        self._saver = IntervalTimer(run.config.saver, steps_per_epoch)
        self._timers = {"recover": self._recover, "saver": self._saver, **others}
        self._compared: str | None = None
        """Name of the rows whose evaluations `saver.best` compares; empty: `valid_dataset`."""
        if run.config.saver.best is not None:
            benchmark = best_benchmark(run.config)
            self._compared = "" if benchmark is None else benchmark.name
        trained = "actor" if hasattr(run.config, "actor") else "model"
        self._limit_s, self._key = getattr(run.config, trained).dist_timeout_s, f"{trained}.dist_timeout_s"
        self._agreement, self._completion = (RankVote(world, self._limit_s, self._key) for _ in range(2))
        self._tokenizer = model_folder(run.config.tokenizer_path, run.cwd) if run.config.tokenizer_path else None
        self._written = LastCheckpoint(-1, NOT_DUE)
        self._memory: dict[str, HostCopies] = {}
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        self.slowest_write_s = 0.0
        self._attempt = launched_attempt() or self._start.attempt
        self._ownership = Ownership(run, self._attempt)
        self._ownership.require()
        if world.is_first:
            remove_leftovers(self._root, run.resume_states)

    def set_epoch(self, steps: int) -> None:
        """The number of steps of an epoch, once it is known better."""
        for timer in self._timers.values():
            timer.steps_per_epoch = steps

    def due(self, step: int, is_last: bool, evaluated: Collection[str] = ()) -> CheckpointPurpose:
        """After `step` completed steps; the last one is always kept. `evaluated`: names of the rows whose evaluation is
        due then. The first rank decides for all. Raises a failure of the previous write as soon as it is known."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()
        recover, saver = self._recover.is_due(step), self._saver.is_due(step)
        saver = saver or self._compared in evaluated
        if self._run.config.bench:
            return NOT_DUE
        flags = self._world.first([self._resumes and (recover or is_last), saver or is_last])
        due = CheckpointPurpose(*map(bool, flags))
        return NOT_DUE if self._written.covers(step, due) else due

    def last(self, step: int) -> CheckpointPurpose:
        """What is to be written if training ends with `step`, unless it is there. Without a question to other ranks."""
        written = self._written
        is_there = written.step == step and (written.due.to_resume if self._resumes else written.due.to_keep)
        return NOT_DUE if self._run.config.bench or is_there else CheckpointPurpose(self._resumes, True)

    def write(
        self,
        step: int,
        due: CheckpointPurpose,
        engines: Mapping[str, TrainEngine],
        progress: TrainingProgress,
        parts: Mapping[str, bytes] | None = None,
    ) -> None:
        """The first of `engines` is written to the checkpoint's folder itself, the others to subfolders by their names.
        `parts` (by file name) is resume state of other components. All ranks must call it."""
        if self._written.step == step and self._written.due.to_resume >= due.to_resume:
            if due.to_keep:
                self.wait_for_all()
                self._mark_as_kept(step)
            return
        self.write_content(self.content(step, due, engines, progress), progress, parts or {})
        if not self._weights_config.save_async:
            self.wait_for_all()

    def content(
        self, step: int, due: CheckpointPurpose, engines: Mapping[str, TrainEngine], progress: TrainingProgress
    ) -> CheckpointContent:
        """In memory, until the next. All ranks must call it."""
        self.wait_for_all()  # what is being written may be in the same memory
        snapshots = {
            name: EngineSnapshot.of(engine, due.to_resume, self._weights_config, self._memory_of(name))
            for name, engine in engines.items()
        }
        facts = {
            "step": step,
            "attempt": self._attempt,
            "engines": {name: engine_scalars(engine) for name, engine in engines.items()},
            "timers": {name: timer.state() for name, timer in self._timers.items()},
            "progress": progress.state(),
        }
        return CheckpointContent(step, due, snapshots, facts)

    def write_content(self, content: CheckpointContent, progress: TrainingProgress, parts: Mapping[str, bytes]) -> None:
        """In a thread; `wait_for_all` waits for it. All ranks must call it, from any thread."""
        step, due = content.step, content.due
        self._written = LastCheckpoint(step, due)
        temporary = self._root / f".{folder_name(step)}.{self._attempt}.half"

        def work() -> None:
            files, written = HashedFiles(), {}
            self._together(lambda: self._make_folder(temporary, step, due), temporary)
            if due.to_resume:
                self._together(lambda: content.write_resume_state(files, temporary), temporary)
                texts = self._agreement.gather(json.dumps(files.below(temporary)), "the files of its part")
                written = {name: FilePart(*part) for text in texts for name, part in json.loads(text).items()}
            if self._world.is_first:
                content.write_model(files, temporary, self._tokenizer, parts)
                progress.sync()
                self._complete(temporary, step, written | files.below(temporary))
                self._prune()

        self._begin(work, step)

    def _make_folder(self, temporary: Path, step: int, due: CheckpointPurpose) -> None:
        if not self._world.is_first:
            return
        self._ownership.require()
        discard(temporary, self._run.resume_states)
        temporary.mkdir(parents=True)
        if due.to_resume and (resume_root := self._run.resume_states) is not None:
            (temporary / RESUME).symlink_to(make_free_folder(resume_root / folder_name(step)))

    def _mark_as_kept(self, step: int) -> None:
        """It is complete: written again, it would be gone for a moment."""
        self._written = LastCheckpoint(step, self._written.due._replace(to_keep=True))
        if self._world.is_first:
            self._ownership.require()
            kept = self._root / folder_name(step) / KEPT
            kept.touch()
            fsync_path(kept.parent)

    @property
    def is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Until this rank's part of the current write is complete."""
        waiting = self._named_wait()
        while not self._is_done(CHECK_INTERVAL_S):
            waiting.check()
        self._thread = None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            if isinstance(fault, OSError | SafetensorError):
                self._ownership.require()  # the start of another launcher removes what is half written
                hint = "; free some space, or write fewer (saver.freq_steps, recover.keep)" if _is_full(fault) else ""
                raise CheckpointNotWritten(f"{self._root}: a checkpoint could not be written: {fault}{hint}") from fault
            raise fault

    def wait_for_all(self) -> None:
        """Until every rank's part is complete: the first rank has the most to write. A rank that failed does not wait
        for the others, whose disks may hang: the launcher ends them."""
        waiting = self._named_wait()

        def check() -> None:
            if self._fault is not None:
                self.wait()
            waiting.check()

        self._completion.wait_for(self._is_done, WRITE, check)
        self.wait()

    def _named_wait(self) -> NamedWait:
        what = f"{WRITE}, which may take {WRITE_TIMEOUTS} times this key"
        return NamedWait(what, WRITE_TIMEOUTS * self._limit_s, self._key)

    def _is_done(self, wait_s: float) -> bool:
        if self._thread is not None:
            self._thread.join(wait_s)
        return self._thread is None or not self._thread.is_alive()

    def resume(self, engines: Mapping[str, TrainEngine], progress: TrainingProgress) -> None:
        """Restores the state of the run from the attempt's checkpoint, if it has one, except what `recover` says to
        skip; the engines already have the checkpoint's weights."""
        if (checkpoint := self._start.checkpoint) is None:
            return
        facts, step = read_trainer_state(checkpoint), self._start.step
        for name, engine in engines.items():
            if name not in facts["engines"]:
                hint = "resume with a configuration like the one that wrote it"
                raise Failure(f"resume: {checkpoint} has no {name}, only {', '.join(facts['engines'])}; {hint}")
            restore_engine(engine, checkpoint / RESUME / name, facts["engines"][name])
            done = 0 if self._run.skips("scheduler") else facts["step"] - engine.schedule_start
            engine.schedule_start = step - done
        if self._run.skips("progress"):
            return
        for name, timer in self._timers.items():
            if name in facts["timers"]:
                timer.restore(facts["timers"][name])
        progress.restore(facts["progress"])
        self._written = LastCheckpoint(step, CheckpointPurpose(True, (checkpoint / KEPT).is_file()))

    def _memory_of(self, name: str) -> HostCopies:
        """Of the snapshots of one engine: one is written before the next is made."""
        if name not in self._memory:
            self._memory[name] = HostCopies(keeps=self._world.device != HOST)
        return self._memory[name]

    def _begin(self, work: Callable[[], None], step: int) -> None:
        def run_work() -> None:
            began = time.monotonic()
            try:
                with pulse.phase(pulse.SAVING):
                    work()
            except BaseException as fault:
                self._fault = fault
            self.slowest_write_s = max(self.slowest_write_s, time.monotonic() - began)

        self._thread = threading.Thread(target=run_work, name=f"checkpoint {step}")
        self._thread.start()

    def _together(self, part: Callable[[], None], temporary: Path) -> None:
        """Each rank does its part; if one fails, all fail."""
        fault = None
        try:
            part()
        except Exception as error:
            fault = error
        all_succeeded = self._agreement.all_succeeded(fault is None)
        if fault is not None:
            raise fault
        if not all_succeeded:
            raise CheckpointNotWritten(f"{temporary}: another rank could not write its part; see the log of that rank")

    def _complete(self, temporary: Path, step: int, written: Mapping[str, FilePart]) -> None:
        write_manifest(temporary, step, written)
        target = self._root / folder_name(step)
        self._ownership.require()
        # What it replaces has less of the same step, or is of a timeline that was rolled back.
        replaced = put_aside(target, self._run.resume_states) if target.exists() else None
        temporary.rename(target)
        fsync_path(self._root)  # before older ones are deleted
        if replaced is not None:
            discard(replaced, self._run.resume_states)
        log.info("checkpoint %s is complete", target)

    def _prune(self) -> None:
        """Keeps the newest `recover.keep` resumable checkpoints as they are. Of older ones those that the saver keeps
        stay, without resume state."""
        if self._config.keep is None:
            return
        complete = [folder for _, folder in reversed(complete_checkpoints(self._root))]
        resumable = [folder for folder in complete if can_resume(folder)]
        for folder in resumable[self._config.keep :]:
            self._ownership.require()
            if (folder / KEPT).is_file():
                for path in drop_resume_parts(folder):
                    discard(path, self._run.resume_states)
            else:
                remove(folder, self._run.resume_states)
        for folder in complete:
            if folder not in resumable and has_dropped_parts(
                folder
            ):  # a kill came between the manifest and the removal
                self._ownership.require()
                discard(folder / RESUME, self._run.resume_states)


def read_trainer_state(checkpoint: Path) -> dict[str, Any]:
    """The trainer's state that is not tensors."""
    facts: dict[str, Any] = json.loads((checkpoint / RESUME / TRAINER).read_text(encoding="utf-8"))
    return facts


def _is_full(fault: OSError | SafetensorError) -> bool:
    """Whether the disk, or the user's share of it, is."""
    if isinstance(fault, OSError):
        return fault.errno in NO_SPACE
    return any(f"os error {number}" in str(fault) for number in NO_SPACE)
