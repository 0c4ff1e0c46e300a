"""What one reward may use, with all that it starts: memory, CPU time, processes, size of a file."""

import errno
import mmap
import os
import resource
from typing import Any, NamedTuple

from areal_like.process.tree_usage import TreeUsage, usage_below

GB = 1e9


class RewardLimits(NamedTuple):
    """The keys `reward.max_*`. None: no limit."""

    max_memory_gb: float | None = None
    max_cpu_s: float | None = None
    max_processes: int | None = None
    max_file_gb: float | None = None

    @property
    def are_watched(self) -> bool:
        return (self.max_memory_gb, self.max_cpu_s, self.max_processes) != (None, None, None)

    def apply(self) -> None:
        """Sets what the kernel enforces, for this process and each that it starts by itself: a reward that catches
        MemoryError or OSError goes on."""
        for kind, limit_gb in (
            (resource.RLIMIT_DATA, self.max_memory_gb),
            (resource.RLIMIT_FSIZE, self.max_file_gb),
        ):
            if limit_gb is not None:
                _, hard = resource.getrlimit(kind)
                limit = int(limit_gb * GB)
                limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.setrlimit(kind, (limit, limit))

    def problem(self, usage: TreeUsage, answer_cpu_s: float) -> str | None:
        """What of a reward's processes exceeds its limit."""
        if self.max_processes is not None and usage.processes > self.max_processes:
            return f"it ran {usage.processes} processes (reward.max_processes={self.max_processes})"
        if self.max_memory_gb is not None and usage.memory_bytes > self.max_memory_gb * GB:
            return f"it held {usage.memory_bytes / GB:.2f} GB of memory (reward.max_memory_gb={self.max_memory_gb:g})"
        if self.max_cpu_s is not None and answer_cpu_s > self.max_cpu_s:
            return f"it used {answer_cpu_s:.1f} s of CPU time (reward.max_cpu_s={self.max_cpu_s:g})"
        return None

    def hint(self, fault: BaseException) -> str:
        """The key that is the reason of an error, if one may be."""
        if isinstance(fault, MemoryError) and self.max_memory_gb is not None:
            return f" (reward.max_memory_gb={self.max_memory_gb:g})"
        if isinstance(fault, OSError) and fault.errno == errno.EFBIG and self.max_file_gb is not None:
            return f" (reward.max_file_gb={self.max_file_gb:g})"
        return ""


NO_LIMITS = RewardLimits()


def reward_limits(config: Any) -> RewardLimits:
    """Of the section `reward`."""
    return RewardLimits(*(getattr(config, name) for name in RewardLimits._fields))


class AnswerCount:
    """How many answers a reward's process has begun, in memory that its keeper reads. Made before the fork."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    def increase(self) -> None:
        self._memory[:] = (self.value + 1).to_bytes(8, "little")

    @property
    def value(self) -> int:
        return int.from_bytes(self._memory[:], "little")


class UsageWatch:
    """In the keeper: what all below it use, its own orphans included."""

    def __init__(self, limits: RewardLimits, answers: AnswerCount) -> None:
        self._limits, self._answers = limits, answers
        self._answer, self._cpu_before_s = -1, 0.0

    def problem(self) -> str | None:
        if not self._limits.are_watched:
            return None
        usage = usage_below(os.getpid())
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = usage.cpu_s + reaped.ru_utime + reaped.ru_stime
        if self._answers.value != self._answer:
            self._answer, self._cpu_before_s = self._answers.value, cpu_s
        return self._limits.problem(usage, cpu_s - self._cpu_before_s)
