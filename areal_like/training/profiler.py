"""What a trainer rank records of itself when asked: where its time goes, and what its GPU's memory holds."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from areal_like.process.run import Run
from areal_like.training.world import World

MAX_EVENTS = 1_000_000
"""Allocations that a snapshot remembers."""

log = logging.getLogger(__name__)


class TrainerProfiler:
    """From when it is made until `close`. Asked for nothing, it does nothing."""

    def __init__(self, run: Run, world: World) -> None:
        asked, start = run.config.profiler, run.start_point()
        self._device, self._rank = world.device, world.rank
        self._again = f".attempt-{start.attempt}" if start.attempt > 1 else ""
        self._snapshots = _folder(run, asked.memory_path) if self._device.type == "cuda" else None
        self._traces = _folder(run, asked.trace_path)
        self._trace: profile | None = None
        if self._snapshots is not None:
            _memory("_record_memory_history")(max_entries=MAX_EVENTS)
        if self._traces is not None:
            activities = [ProfilerActivity.CPU]
            if self._device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._trace = profile(activities=activities)
            self._trace.start()
            self._mark(start.step)

    def step(self, completed: int) -> None:
        """After each step."""
        if self._trace is not None:
            self._span.__exit__(None, None, None)
            self._mark(completed)
        if self._snapshots is not None:
            path = self._snapshots / f"step_{completed}" / f"rank_{self._rank}{self._again}.pickle"
            path.parent.mkdir(parents=True, exist_ok=True)
            _memory("_dump_snapshot")(str(path))

    def close(self) -> None:
        """Writes the timeline."""
        if self._snapshots is not None:
            _memory("_record_memory_history")(enabled=None)
        if self._trace is not None and self._traces is not None:
            self._span.__exit__(None, None, None)
            self._trace.stop()
            path = self._traces / f"trace_{self._rank}{self._again}.json.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._trace.export_chrome_trace(str(path))
            self._trace = None
            log.info("a timeline of all steps is in %s", path)

    def _mark(self, completed: int) -> None:
        """What the timeline shows above all that happens until the next step is done."""
        self._span = record_function(f"after {completed} steps")
        self._span.__enter__()  # type: ignore[no-untyped-call]


def _folder(run: Run, said: str | None) -> Path | None:
    return None if said is None else run.directory / Path(said).expanduser()


def _memory(name: str) -> Callable[..., Any]:
    """PyTorch documents these two for everybody, underscore and all."""
    function: Callable[..., Any] = getattr(torch.cuda.memory, name)
    return function
