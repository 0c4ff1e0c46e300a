"""An evaluation beside training is answered by several versions of the weights, each of which has its line: taken
together again they are one evaluation, of all rows."""

from collections.abc import Iterable, Sequence

from areal_like.observe.metrics import FACTS
from areal_like.observe.reading import DUE, Line, is_evaluation

SAMPLES = "eval/samples"
COUNTS = (SAMPLES, "eval/failed")
"""Added up, where the others are means."""


def evaluations(lines: Iterable[Line]) -> list[Line]:
    """One line per evaluation, in the order of steps: means over all its samples, at the mean step. A line that does
    not say which evaluation it is of is one by itself."""
    alone: list[Line] = []
    groups: dict[float, dict[int, Line]] = {}
    for line in filter(is_evaluation, lines):
        if line.get(DUE) is None:
            alone.append(line)
        else:
            groups.setdefault(line[DUE], {})[line["step"]] = line  # after a recovery, what comes again counts
    whole = [_together(list(group.values())) for group in groups.values()]
    return sorted([*alone, *whole], key=lambda line: int(line["step"]))


def _together(group: Sequence[Line]) -> Line:
    if len(group) == 1:
        return group[0]
    weights = [line.get(SAMPLES, 0.0) for line in group]
    total = sum(weights)
    found: Line = {
        **group[-1],
        "step": round(sum(w * line["step"] for w, line in zip(weights, group, strict=True)) / total),
    }
    for name in {name for line in group for name in line if name not in (*FACTS, DUE)}:
        known = [(w, line[name]) for w, line in zip(weights, group, strict=True) if line.get(name) is not None]
        share = 1.0 if name in COUNTS else sum(w for w, _ in known)
        parts = (value if name in COUNTS else w * value for w, value in known)
        found[name] = sum(parts) / share if share else None
    return found
