"""The table of docs/results.md, from the learning curves in docs/results/, which tests/bench/algorithm_curves.py
writes. The rest of the page is written by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
BEGIN, END = "<!-- learning curves, written by `make docs` -->", "<!-- end of learning curves -->"
POINTS = (0.25, 0.5, 0.75, 1.0)
"""Parts of the run at which the table shows the score."""

Curve = list[list[float]]
"""Steps with their scores."""


def render(page: str) -> str:
    """docs/results.md with the table as it is now."""
    before, found_begin, rest = page.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    assert found_begin and found_end, f"the page has no place for the table: {BEGIN}"
    return f"{before}{BEGIN}\n\n{table(read_results(RESULTS))}\n\n{END}{after}"


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Of all algorithms, by their names: title, command, and a run for each seed."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: scores at the start and after parts of the steps, and how far they have risen."""
    shares = [f"{share:.0%}" for share in POINTS]
    lines = [
        f"| | command | seeds | steps | start | {' | '.join(shares)} | rise |",
        f"| --- | --- | ---: | ---: | ---: |{' ---: |' * (len(POINTS) + 1)}",
    ]
    for result in results:
        curves: list[Curve] = [run["curve"] for run in result["runs"]]
        scores = [_spread([at(curve, share) for curve in curves]) for share in (0.0, *POINTS)]
        rises = sum(rise(curve) for curve in curves) / len(curves)
        steps = f"{curves[0][-1][0]:g}"
        cells = (result["title"], f"`{result['command']}`", str(len(curves)), steps, *scores, f"{rises:+.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def at(curve: Curve, share: float) -> float:
    """The last score up to this share of the steps."""
    until = share * curve[-1][0]
    return [score for step, score in curve if step <= until][-1]


def rise(curve: Curve) -> float:
    """From the first score to the last, not to the best."""
    return curve[-1][1] - curve[0][1]


def _spread(scores: Sequence[float]) -> str:
    """The mean, and the lowest and highest score if they differ."""
    low, high = f"{min(scores):.2f}", f"{max(scores):.2f}"
    return low if low == high else f"{sum(scores) / len(scores):.2f} ({low}-{high})"
