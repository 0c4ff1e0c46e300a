"""Profiling of a trainer rank: torch traces and snapshots of GPU memory."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from areal_like.process.run import Run
from areal_like.training.world import World

MAX_EVENTS = 1_000_000
"""Allocations recorded per snapshot."""

log = logging.getLogger(__name__)


class TrainerProfiler:
    """Records from creation to `close`, what `profiler` asks for."""

    def __init__(self, run: Run, world: World) -> None:
        config, start = run.config.profiler, run.start_point()
        self._device, self._rank = world.device, world.rank
        self._suffix = f".attempt-{start.attempt}" if start.attempt > 1 else ""
        self._snapshots = _folder(run, config.memory_path) if self._device.type == "cuda" else None
        self._traces = _folder(run, config.trace_path)
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
        """Called after each step."""
        if self._trace is not None:
            self._span.__exit__(None, None, None)
            self._mark(completed)
        if self._snapshots is not None:
            path = self._snapshots / f"step_{completed}" / f"rank_{self._rank}{self._suffix}.pickle"
            path.parent.mkdir(parents=True, exist_ok=True)
            _memory("_dump_snapshot")(str(path))

    def close(self) -> None:
        """Writes the trace."""
        if self._snapshots is not None:
            _memory("_record_memory_history")(enabled=None)
        if self._trace is not None and self._traces is not None:
            self._span.__exit__(None, None, None)
            self._trace.stop()
            path = self._traces / f"trace_{self._rank}{self._suffix}.json.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._trace.export_chrome_trace(str(path))
            self._trace = None
            log.info("a trace of all steps is in %s", path)

    def _mark(self, completed: int) -> None:
        """Opens the trace's span of the next step."""
        self._span = record_function(f"after {completed} steps")
        self._span.__enter__()  # type: ignore[no-untyped-call]


def _folder(run: Run, path: str | None) -> Path | None:
    return None if path is None else run.directory / Path(path).expanduser()


def _memory(name: str) -> Callable[..., Any]:
    """Functions with an underscore that PyTorch documents for public use."""
    function: Callable[..., Any] = getattr(torch.cuda.memory, name)
    return function
