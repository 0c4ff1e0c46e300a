"""The tables of docs/results.md and docs/experiments.md, and the charts of the latter, from the learning curves in
docs/results/ and docs/experiments/, which tests/bench/{algorithm,experiment}_curves.py write. The rest of the pages is
written by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_like.observe.charts import Series, svg_chart

RESULTS, EXPERIMENTS, IMAGES = (Path(__file__).parents[1] / name for name in ("results", "experiments", "images"))
BEGIN, END = "<!-- learning curves, written by `make docs` -->", "<!-- end of learning curves -->"
POINTS = (0.25, 0.5, 0.75, 1.0)
"""Parts of the run at which the table shows the score."""

Curve = list[list[float]]
"""Steps with their scores."""


def render(page: str, folder: Path) -> str:
    """The page with the table of the curves in the folder."""
    before, found_begin, rest = page.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    assert found_begin and found_end, f"the page has no place for the table: {BEGIN}"
    return f"{before}{BEGIN}\n\n{table(read_results(folder))}\n\n{END}{after}"


def charts(folder: Path) -> dict[Path, str]:
    """SVG file -> its text: a chart for each result, with a line for each seed."""
    return {
        IMAGES / f"{file.stem.replace('_', '-')}.svg": _chart(result)
        for file, result in zip(sorted(folder.glob("*.json")), read_results(folder), strict=True)
    }


def _chart(result: Mapping[str, Any]) -> str:
    lines = [Series(f"seed {run['seed']}", [(step, score) for step, score in run["curve"]]) for run in result["runs"]]
    return svg_chart(f"{result['title']}: held-out score", lines)


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
