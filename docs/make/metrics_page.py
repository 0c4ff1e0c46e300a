"""docs/metrics.md, made from the catalogue."""

from areal_like.observe.metrics import GROUPS, METRICS

_INTRO = """\
# Metrics

This page is made from the code by `make docs`; do not edit it.

A run keeps its metrics in `metrics.jsonl` of its directory: a line of JSON per completed step, and one per evaluation.
`step` counts completed steps: after the first step it is 1, and an evaluation of step 20 was answered by the weights
that 20 steps made, or by those and newer ones. `attempt` counts recoveries of the run, `time` is in seconds since 1970.
A value that was not finite is null. When a run goes back to a checkpoint, the lines after it move to
`metrics.attempt-K.jsonl`, K being the attempt that ended. `metrics/` has the lines of each process by itself.

An evaluation is written when it is complete, as one line: its means are over all rows, but for those that failed or
were rejected, which are counted beside them. Before the first and after the last step, and everywhere with
`evaluator.pin=true`, one version of the weights answers all of it; it is given up for the newest only where all
servers that had it died and it is nowhere else. Without that an evaluation beside training may be
answered by several, `eval/version_min` to `eval/version_max`; `step` is then the oldest of them. The terminal and the
summary show the same numbers, the versions where they are several, and the rows that failed. Where more rows failed or
were rejected than `evaluator.max_failed_share` allows there is no score: it is null, the reason is shown in its place,
and an objective that would be the score is null too.

Trackers get the same names, with the step as the x-axis. A `*` stands for any text.

A sweep asks every run for one number, its objective: the last value of the metric that `objective` names; without that
key the last `eval/score`, else `eval/accuracy`, else `eval/loss`, else `reward/mean` or `train/loss`.
"""


def render() -> str:
    """The whole page."""
    lines = _INTRO.splitlines()
    for group, meaning in GROUPS.items():
        lines += ["", f"## {group}", "", meaning, "", "| name | unit | what it is |", "|---|---|---|"]
        lines += [
            f"| `{name}` | {metric.unit} | {metric.help} |"
            for name, metric in METRICS.items()
            if name.startswith(f"{group}/")
        ]
    return "\n".join(lines) + "\n"
