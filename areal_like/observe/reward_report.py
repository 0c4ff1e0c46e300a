"""A report on a reward over saved answers: distribution, failures, the slowest and the oddest answers, and how far two
rewards agree."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from areal_like.config.problems import plural
from areal_like.observe.text import cut_middle

NUM_SHOWN = 3
"""Answers of a kind."""
MAX_VALUES, NUM_BINS = 6, 8
"""Up to so many different values each has a line of the distribution; else so many ranges have one."""
BAR_WIDTH = 24


@dataclass(frozen=True)
class ScoredAnswer:
    """`place`: file and line. `prompt`: equal for answers to the same row. `value` is None if the reward failed. `row`
    has the columns of the dataset."""

    place: str
    prompt: str
    completion: str
    value: float | None
    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"{self.place}  {cut_middle(' '.join(self.completion.split()), 40, 40)!r}"


Scored = Sequence[ScoredAnswer]


def reward_report(name: str, answers: Scored) -> Iterator[str]:
    """The lines on one reward."""
    values = [each.value for each in answers if each.value is not None]
    prompts = len({each.prompt for each in answers})
    counted = f"{plural(len(answers), 'answer')} to {plural(prompts, 'prompt')}"
    yield f"{name}: {counted}, {len(answers) - len(values)} failed"
    if values:
        mean, deviation = _moments(values)
        yield f"  mean {mean:.4g}, deviation {deviation:.4g}, from {min(values):g} to {max(values):g}"
        yield from _distribution(values)
        yield from _parts(answers)
    seconds = sorted(each.seconds for each in answers)
    median, late = seconds[len(seconds) // 2], seconds[math.ceil(0.95 * len(seconds)) - 1]
    yield f"  time: median {_time(median)}, 95% within {_time(late)}, longest {_time(seconds[-1])}"
    for error, count in Counter(each.error for each in answers if each.error).most_common(NUM_SHOWN):
        first = next(each for each in answers if each.error == error)
        yield f"  failed: {count} times, first {first.place}: {error}"
    for each in sorted(answers, key=lambda each: -each.seconds)[:NUM_SHOWN]:
        yield f"  slowest: {_time(each.seconds)}  {each.text}"
    for each, usual in oddest(answers):
        yield f"  oddest: {each.value:g}, where {usual:.3g} is usual  {each.text}"
    if changing := _changing(answers):
        yield f"  not steady: the same answer has the rewards {changing[0].value:g} and {changing[1].value:g}  " + (
            changing[1].text
        )


def oddest(answers: Scored) -> list[tuple[ScoredAnswer, float]]:
    """Those farthest from the mean of the other answers to their prompt, or to all prompts where it has no other; with
    this mean."""
    by_prompt: dict[str, list[float]] = {}
    for each in answers:
        if each.value is not None:
            by_prompt.setdefault(each.prompt, []).append(each.value)
    everything = [value for values in by_prompt.values() for value in values]
    odd = []
    for each in answers:
        if each.value is None or len(everything) == 1:
            continue
        compared = by_prompt[each.prompt] if len(by_prompt[each.prompt]) > 1 else everything
        usual = (math.fsum(compared) - each.value) / (len(compared) - 1)
        if not math.isclose(usual, each.value, abs_tol=1e-9):
            odd.append((each, usual))
    return sorted(odd, key=lambda pair: -abs(pair[0].value - pair[1]))[:NUM_SHOWN]  # type: ignore[operator]


def agreement_report(rewards: Mapping[str, Scored]) -> Iterator[str]:
    """The lines on each pair of rewards over the same answers."""
    for (first, firsts), (second, seconds) in combinations(rewards.items(), 2):
        pairs = [(a, a.value, b.value) for a, b in zip(firsts, seconds, strict=True)]
        both = [(answer, x, y) for answer, x, y in pairs if x is not None and y is not None]
        head = f"{first} and {second}"
        if not both:
            yield f"{head}: no answer has both rewards"
            continue
        same = sum(math.isclose(x, y, abs_tol=1e-9) for _, x, y in both)
        related = correlation([x for _, x, _ in both], [y for _, _, y in both])
        text = "none, as one of them is the same for all" if related is None else f"{related:.3g}"
        yield f"{head}: {same} of {plural(len(both), 'answer')} have equal rewards, correlation {text}"
        differing: dict[tuple[float, float], list[ScoredAnswer]] = {}
        for answer, x, y in both:
            if not math.isclose(x, y, abs_tol=1e-9):
                differing.setdefault((x, y), []).append(answer)
        for (x, y), found in sorted(differing.items(), key=lambda each: -abs(each[0][0] - each[0][1]))[:NUM_SHOWN]:
            times = f", {len(found)} times, first" if len(found) > 1 else ""
            yield f"  different: {x:g} and {y:g}{times}  {found[0].text}"


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's; None if one of them does not vary."""
    (mean_x, deviation_x), (mean_y, deviation_y) = _moments(xs), _moments(ys)
    if not deviation_x or not deviation_y:
        return None
    product = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / len(xs)
    return product / (deviation_x * deviation_y)


def _moments(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _distribution(values: Sequence[float]) -> Iterator[str]:
    counts = Counter(values)
    if len(counts) <= MAX_VALUES:
        rows = [(f"{value:g}", counts[value]) for value in sorted(counts)]
    else:
        low, high = min(values), max(values)
        size = (high - low) / NUM_BINS
        bins = Counter(min(NUM_BINS - 1, int((value - low) / size)) for value in values)
        rows = [(f"{low + size * at:.3g} to {low + size * (at + 1):.3g}", bins[at]) for at in range(NUM_BINS)]
    width, most = max(len(label) for label, _ in rows), max(count for _, count in rows)
    for label, count in rows:
        yield f"  {label:>{width}} {'█' * math.ceil(BAR_WIDTH * count / most)} {count}"


def _parts(answers: Scored) -> Iterator[str]:
    names = sorted({name for each in answers for name in each.parts})
    means = {
        name: _moments([each.parts[name] for each in answers if name in each.parts and each.value is not None])[0]
        for name in names
    }
    if means:
        yield f"  parts: {', '.join(f'{name} {mean:.4g}' for name, mean in means.items())}"


def _changing(answers: Scored) -> tuple[ScoredAnswer, ScoredAnswer] | None:
    """Two equal answers to equal rows that have different rewards."""
    first: dict[tuple[str, str, str], ScoredAnswer] = {}
    for each in answers:
        if each.value is None:
            continue
        other = first.setdefault((each.prompt, repr(each.row), each.completion), each)
        if other.value != each.value:
            return other, each
    return None


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
