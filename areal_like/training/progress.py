"""Training progress: counts of samples and tokens, and the metrics of each step."""

import resource
import time
from collections.abc import Mapping
from typing import Any

import torch

from areal_like.observe.timing import Stopwatch
from areal_like.observe.writer import MetricWriter
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.training.profiler import TrainerProfiler
from areal_like.training.world import World

STEP_PARTS = ("wait", "values", "prepare", "logprobs", "train", "publish", "critic", "checkpoint", "evaluate")


class TrainingProgress:
    """Counts samples and tokens over the whole run; the first rank writes the metrics."""

    def __init__(self, run: Run, me: Identity, world: World) -> None:
        self.watch = Stopwatch()
        self.samples = self.tokens = 0
        self._world, self._cpu_s = world, time.process_time()
        self._writer = MetricWriter(run, me)
        self._profile = TrainerProfiler(run, world)

    def step(self, completed: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of a step, with its timings; `completed` includes it."""
        self._profile.step(completed)
        elapsed, cpu_s = self.watch.elapsed(), time.process_time()
        seconds = self.watch.take()
        samples, tokens = metrics["train/samples"], metrics["train/tokens"]
        self.samples, self.tokens = self.samples + int(samples), self.tokens + int(tokens)
        performance = {
            "perf/step_s": elapsed,
            **{f"perf/{part}_s": seconds.get(part, 0.0) for part in STEP_PARTS if part in seconds},
            "perf/samples_per_s": samples / elapsed,
            "perf/tokens_per_s": tokens / elapsed,
            "perf/memory_gb": peak_memory_gb(self._world.device),
            "perf/threads": float(torch.get_num_threads()),
            "perf/cpu_s": cpu_s - self._cpu_s,
        }
        self._cpu_s = cpu_s
        if self._world.is_first:
            self._writer.write(completed, {**metrics, **performance})

    def evaluation(self, completed: int, metrics: Mapping[str, float]) -> None:
        """Writes metrics of the weights after `completed` steps as a separate line."""
        if self._world.is_first:
            self._writer.write(completed, metrics)

    def sync(self) -> None:
        """What was written survives a crash of the machine."""
        self._writer.sync()

    def close(self) -> None:
        """Called after the last step."""
        self._profile.close()

    def state(self) -> dict[str, Any]:
        return {"samples": self.samples, "tokens": self.tokens}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.samples, self.tokens = state["samples"], state["tokens"]


def peak_memory_gb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
