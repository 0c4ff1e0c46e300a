"""Checkpoints: when one is due, what is in it, and which of the older ones go.

A checkpoint is a folder as transformers reads it, with what is needed to resume in `resume/` beside the weights. It is
written under another name and renamed when it is complete, while training goes on where `weights.save_async` says so.
"""

import json
import logging
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from areal_like.process.errors import Failure
from areal_like.process.run import Run
from areal_like.training import manifest
from areal_like.training.engine import Engine
from areal_like.training.hf_folder import write_hf_folder
from areal_like.training.progress import Progress
from areal_like.training.resume_state import STATE_FILE, engine_facts, engine_state, restore_engine
from areal_like.training.timers import Timer
from areal_like.training.world import World

FACTS_FILE = "trainer.json"

log = logging.getLogger(__name__)


class Unwritable(Failure):
    """Going back to the checkpoint before would end in the same place."""

    kind = "final"


class Due(NamedTuple):
    """What a step's checkpoint is for: to go on from, and to be kept for good."""

    to_resume: bool
    to_keep: bool

    def __bool__(self) -> bool:
        return self.to_resume or self.to_keep


NOTHING = Due(False, False)


class Written(NamedTuple):
    """The newest checkpoint of this attempt."""

    step: int
    due: Due

    def covers(self, step: int, due: Due) -> bool:
        """Whether it is all that this step's would be."""
        return self.step == step and self.due.to_resume >= due.to_resume and self.due.to_keep >= due.to_keep


class Checkpoints:
    def __init__(
        self, run: Run, world: World, steps_per_epoch: int, others: Mapping[str, Timer] = MappingProxyType({})
    ) -> None:
        """`others` are clocks that have to be put back too."""
        self._root, self._world = run.checkpoints, world
        self._config, self._is_async = run.config.recover, run.config.weights.save_async
        self._resumes = run.config.recover.mode != "disabled"
        self._recover = Timer(run.config.recover, steps_per_epoch)
        self._saver = Timer(run.config.saver, steps_per_epoch)
        self._timers = {"recover": self._recover, "saver": self._saver, **others}
        self._written = Written(-1, NOTHING)
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    def due(self, step: int, is_last: bool) -> Due:
        """After `step` completed steps; the last one is always kept. The first rank's clocks decide for all."""
        recover, saver = self._recover.is_due(step), self._saver.is_due(step)
        said = self._world.first([self._resumes and (recover or is_last), saver or is_last])
        due = Due(*map(bool, said))
        return NOTHING if self._written.covers(step, due) else due

    def write(
        self, step: int, due: Due, engine: Engine, progress: Progress, parts: Mapping[str, bytes] | None = None
    ) -> None:
        """`parts` (by name) are what others need to resume. All ranks must call it."""
        self.wait()
        self._written = Written(step, due)
        weights = _on_host(dict(engine.export_weights()))
        state = _on_host(engine_state(engine)) if due.to_resume else {}
        if not self._world.is_first:
            return
        timers = {name: timer.state() for name, timer in self._timers.items()}
        said = {"step": step, "engine": engine_facts(engine), "timers": timers, "progress": progress.facts()}

        def work() -> None:
            try:
                self._write(step, due, engine, weights, state, said, parts or {})
                self._prune()
            except BaseException as fault:
                self._fault = fault

        self._thread = threading.Thread(target=work, name=f"checkpoint {step}")
        self._thread.start()
        if not self._is_async:
            self.wait()

    def wait(self) -> None:
        """Until what is being written is complete."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            if isinstance(fault, OSError | SafetensorError):
                hint = "free some space, or write fewer (saver.freq_steps, recover.keep)"
                raise Unwritable(f"{self._root}: a checkpoint could not be written: {fault}; {hint}") from fault
            raise fault

    def resume(self, checkpoint: Path, engine: Engine, progress: Progress) -> None:
        """Puts everything back as it was; the engine has the checkpoint's weights already."""
        facts = read_facts(checkpoint)
        restore_engine(engine, checkpoint / manifest.RESUME, facts["engine"])
        if self._config.skip_scheduler:
            engine.schedule_start = facts["step"]
        for name, timer in self._timers.items():
            timer.restore(facts["timers"][name])
        progress.restore(facts["progress"])
        self._written = Written(facts["step"], Due(True, (checkpoint / manifest.KEPT).is_file()))

    def _write(
        self,
        step: int,
        due: Due,
        engine: Engine,
        weights: dict[str, Tensor],
        state: dict[str, Tensor],
        facts: dict[str, Any],
        parts: Mapping[str, bytes],
    ) -> None:
        target = self._root / manifest.folder_name(step)
        half = self._root / f".{target.name}.half"
        shutil.rmtree(half, ignore_errors=True)
        write_hf_folder(half, engine.causal, engine.folder, weights, getattr(torch, engine.config.dtype))
        if due.to_resume:
            resume = half / manifest.RESUME
            resume.mkdir()
            save_file(state, resume / STATE_FILE)
            (resume / FACTS_FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
            for name, content in parts.items():
                (resume / name).write_bytes(content)
        manifest.seal(half, step)
        if due.to_keep:
            (half / manifest.KEPT).touch()
        if target.exists():  # of a lineage that was given up
            _remove(target)
        half.rename(target)
        log.info("checkpoint %s is complete", target)

    def _prune(self) -> None:
        """Of the checkpoints that can be resumed from, the newest `recover.keep` stay as they are. Of older ones what
        the saver keeps stays, without what is needed to resume."""
        if self._config.keep is None:
            return
        resumable = [folder for folder in manifest.checkpoints_in(self._root) if manifest.can_resume(folder)]
        for folder in resumable[self._config.keep :]:
            if (folder / manifest.KEPT).is_file():
                for path in manifest.forget_resume(folder):
                    shutil.rmtree(path)
            else:
                _remove(folder)


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """What the trainer wrote down of itself."""
    facts: dict[str, Any] = json.loads((checkpoint / manifest.RESUME / FACTS_FILE).read_text(encoding="utf-8"))
    return facts


def check_whole(checkpoint: Path) -> None:
    """A damaged checkpoint is a failure that names what is wrong with it."""
    wrong = manifest.complaints(checkpoint)
    if not wrong and not manifest.can_resume(checkpoint):
        wrong = [f"{checkpoint.name}: holds weights alone, nothing to resume from"]
    if wrong:
        raise Failure(
            f"resume: nothing can go on from {checkpoint}: {'; '.join(wrong)}; choose another with resume_step"
        )


def _on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies that the next update does not change."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _remove(folder: Path) -> None:
    """Under another name first: a folder that is half gone must not look like a checkpoint."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)
