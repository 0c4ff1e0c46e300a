"""Text of a run's progress: one plain line, or a panel of three lines."""

import math

from areal_like.observe.evaluations import score_remarks
from areal_like.observe.history import History
from areal_like.observe.text import format_amount, format_duration, format_small, sparkline

BAR, SPARK = 24, 16
STUCK = 3.0
"""A step that takes so many times as long as those before is pointed out."""


def plain_line(history: History, now: float, max_staleness: int | None) -> str:
    """`step  12/160  reward 0.71  held-out 0.62  3.1k tok/s  staleness 1.2 (max 2)  |dlogp| 3e-06  left 1:20`"""
    return "  ".join([_count(history), *_learning(history), *_state(history, max_staleness), *_left(history, now)])


def panel(history: History, now: float, max_staleness: int | None, columns: int) -> list[str]:
    """The same with a progress bar and sparklines of reward and score; no line is longer than `columns`."""
    first = [_count(history), *_bar(history), *_pace(history), *_left(history, now), *_stuck(history, now)]
    second = _learning(history, with_course=True)
    third = _state(history, max_staleness)
    lines = ["   ".join(parts) for parts in (first, second, third) if parts]
    return [line[:columns] for line in lines]


def _count(history: History) -> str:
    total = history.total_steps
    return f"step {history.step}" if total is None else f"step {history.step:>{len(str(total))}}/{total}"


def _bar(history: History) -> list[str]:
    if history.total_steps is None:
        return []
    share = min(1.0, history.step / history.total_steps)
    done = round(share * BAR)
    return [f"{'━' * done}{'─' * (BAR - done)} {share:4.0%}"]


def _pace(history: History) -> list[str]:
    pace = history.seconds_per_step
    return [] if pace is None else [f"{pace:.2g} s a step"]


def _left(history: History, now: float) -> list[str]:
    left = history.left_s(now)
    return [] if left is None else [f"left {format_duration(left)}"]


def _stuck(history: History, now: float) -> list[str]:
    pace, since = history.seconds_per_step, history.since_s(now)
    return [f"(last step {format_duration(since)} ago)"] if pace is not None and since > max(10.0, STUCK * pace) else []


def _learning(history: History, with_course: bool = False) -> list[str]:
    """Reward and held-out score; without rewards the losses."""
    shown: list[tuple[str, list[float]]]
    scores = history.evaluations("eval/score")
    if history.rewards:
        shown = [("reward", history.rewards), ("held-out", scores)]
    else:
        held_out = history.evaluations("eval/loss")
        shown = [("loss", history.losses), ("held-out loss", held_out), ("held-out", scores)]
        shown.append(("held-out accuracy", history.evaluations("eval/accuracy")))
    parts = []
    for name, values in shown:
        if values:
            course = f" {sparkline(values, SPARK)}" if with_course and len(values) > 1 else ""
            if with_course and name.startswith("held-out"):
                course += score_remarks(history.last_evaluation)
            is_missing = values is scores and not math.isfinite(values[-1])
            parts.append(f"{name} {'none' if is_missing else _number(values[-1])}{course}")
    parts += [f"{name} {_number(score)}" for name, score in history.benchmarks().items()]
    return parts


def _number(value: float) -> str:
    return f"{value:.2f}" if not math.isfinite(value) or abs(value) >= 0.005 or value == 0 else f"{value:.1e}"


def _state(history: History, max_staleness: int | None) -> list[str]:
    values, parts = history.values, []
    if "perf/tokens_per_s" in values:
        parts.append(f"{format_amount(values['perf/tokens_per_s'])} tok/s")
    if "offpolicy/staleness_mean" in values:
        bound = "" if max_staleness is None else f" (max {max_staleness})"
        parts.append(f"staleness {values['offpolicy/staleness_mean']:.1f}{bound}")
    if "offpolicy/logprob_diff_mean" in values:
        parts.append(f"|dlogp| {format_small(values['offpolicy/logprob_diff_mean'])}")
    if not history.rewards and "train/lr" in values:
        parts.append(f"lr {format_small(values['train/lr'])}")
    return parts
