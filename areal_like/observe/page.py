"""docs/metrics.md, made from the catalogue."""

from areal_like.observe.metrics import GROUPS, NAMES

_INTRO = """\
# Metrics

This page is made from the code by `make docs`; do not edit it.

A run keeps its metrics in `metrics.jsonl` of its directory: a line of JSON per completed step, and one per evaluation.
`step` counts completed steps: after the first step it is 1, and an evaluation of step 20 was answered by the weights
that 20 steps made. `attempt` counts recoveries of the run, `time` is in seconds since 1970. A value that was not
finite is null. When a run goes back to a checkpoint, the lines after it move to `metrics.attempt-K.jsonl`, K being the
attempt that ended. `metrics/` has the lines of each process by itself.

An evaluation beside training may be answered by several versions of the weights, and then has a line for each. What is
shown of it, in the terminal, in the summary and as the objective, is the mean over all of its answers.

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
            for name, metric in NAMES.items()
            if name.startswith(f"{group}/")
        ]
    return "\n".join(lines) + "\n"
