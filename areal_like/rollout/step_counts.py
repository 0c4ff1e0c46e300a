"""Counts and timings since the last step, for its metrics."""

from collections import Counter
from collections.abc import Mapping

from areal_like.observe.metrics import STEP_ERROR_GROUPS
from areal_like.rollout.decisions import REPLACED
from areal_like.rollout.groups import Group

REWARD_COUNT_METRICS = {
    "errors": "reward_errors",
    "timeouts": "reward_timeouts",
    "children_lost": "reward_processes_lost",
    "infrastructure": "infrastructure_errors",
}
"""Counter of a worker -> metric."""
ENVIRONMENT_COUNTS = ("environment_starts", "environment_failures", "environment_timeouts")
"""Counters of a worker that are metrics by the same names, in steps where there are some."""
STEP_COUNTS = (
    *("dropped_stale", "dropped_equal", "rejected", "failed", "requeued", "running", "ready"),
    *REWARD_COUNT_METRICS.values(),
)
TOO_LONG, DIFFICULTY = "dropped_too_long", "dropped_difficulty"
"""Only in steps where there are some."""
TIMING_METRICS = {
    "total_s": "perf/episode_s",
    "generate_s": "perf/episode_generate_s",
    "tools_s": "perf/episode_tools_s",
    "reward_s": "perf/episode_reward_s",
    "other_s": "perf/episode_other_s",
}
"""Timing of a worker -> metric."""


class StepCounts:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        """Groups that failed, by their first error."""
        self._left_out: Counter[str] = Counter()
        """Groups with equal rewards or of another difficulty, by their environment."""
        self._reward_counts: dict[str, dict[str, int]] = {}
        """Latest counters of each worker; a worker counts from its start."""
        self._timings: list[dict[str, float]] = []

    def add(self, name: str, count: int = 1) -> None:
        self._counts[name] += count

    def add_too_long(self) -> None:
        self.add(TOO_LONG)

    def add_left_out(self, group: Group, reason: str) -> None:
        """Of each environment, where there are some."""
        if reason in REPLACED and (name := group.facts[0].get("env", "")):
            self._left_out[name] += 1

    def add_failed(self, error: str) -> None:
        self.add("failed")
        self._errors[error] += 1

    def add_levels(self, **levels: int) -> None:
        """The highest level since the last step is reported."""
        self._counts |= Counter(levels)

    def add_rewards(self, worker: str, counts: dict[str, int]) -> None:
        before = self._reward_counts.setdefault(worker, {})
        for name, count in counts.items():
            self._counts[REWARD_COUNT_METRICS.get(name, name)] += count - before.get(name, 0)
        before.update(counts)

    def worker_started(self, worker: str) -> None:
        self._reward_counts.pop(worker, None)

    def add_timings(self, timings: dict[str, float]) -> None:
        self._timings.append(timings)

    def report(self, step: int, values: Mapping[str, float]) -> tuple[int, dict[str, float], str]:
        """The step, its metrics with those of the counts, and the most frequent error of groups that failed."""
        error, count = max(self._errors.items(), key=lambda item: item[1], default=("", 0))
        self._errors = Counter()
        return step, {**values, **self._take(), STEP_ERROR_GROUPS: float(count)}, error

    def _take(self) -> dict[str, float]:
        """Metrics of the counts, and means of the timings over the finished groups; both begin again."""
        counts, timings = self._counts, self._timings
        self._counts, self._timings = Counter(), []
        means = {
            metric: _mean(name, timings)
            for name, metric in TIMING_METRICS.items()
            if any(name in one for one in timings)
        }
        names = (*STEP_COUNTS, *(name for name in (TOO_LONG, DIFFICULTY, *ENVIRONMENT_COUNTS) if counts[name]))
        left_out, self._left_out = self._left_out, Counter()
        return {
            **{f"rollout/{name}": float(counts[name]) for name in names},
            **means,
            **{f"env/{name}/left_out": float(count) for name, count in left_out.items()},
        }


def _mean(name: str, timings: list[dict[str, float]]) -> float:
    """A timing is missing where a workflow never waited for it."""
    return sum(one.get(name, 0.0) for one in timings) / len(timings)
