"""An evaluation beside training is answered by several versions of the weights, each of which has its line. They are
written together, when the last row is done: taken together again they are one evaluation, of all rows."""

from collections.abc import Iterable, Sequence

from areal_like.observe.metrics import FACTS
from areal_like.observe.reading import Line, is_evaluation

TOGETHER_S = 0.1
"""Between lines of one evaluation."""
SAMPLES = "eval/samples"


def evaluations(lines: Iterable[Line]) -> list[Line]:
    """One line per evaluation, in the order of steps: means over all its samples, at the mean step."""
    groups: list[list[Line]] = []
    for line in lines:
        if is_evaluation(line):
            if groups and _belongs(groups[-1][-1], line):
                groups[-1].append(line)
            else:
                groups.append([line])
    return sorted((_together(group) for group in groups), key=lambda line: int(line["step"]))


def _belongs(last: Line, line: Line) -> bool:
    apart = abs(line.get("time", 0.0) - last.get("time", 0.0))
    return line["step"] > last["step"] and apart <= TOGETHER_S and SAMPLES in line and SAMPLES in last


def _together(group: Sequence[Line]) -> Line:
    if len(group) == 1:
        return group[0]
    weights = [line[SAMPLES] for line in group]
    total = sum(weights)
    found: Line = {
        **group[-1],
        "step": round(sum(w * line["step"] for w, line in zip(weights, group, strict=True)) / total),
    }
    for name in {name for line in group for name in line if name not in FACTS}:
        known = [(w, line[name]) for w, line in zip(weights, group, strict=True) if line.get(name) is not None]
        share = sum(w for w, _ in known)
        found[name] = sum(w * value for w, value in known) / share if share else None
    found[SAMPLES] = total
    return found
