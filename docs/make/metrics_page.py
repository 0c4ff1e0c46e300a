"""Makes docs/metrics.md from the catalogue of metrics."""

from areal_like.observe.metrics import GROUPS, METRICS

_INTRO = """\
# Metrics

This page is made from the code by `make docs`; do not edit it.

A run writes its metrics to `metrics.jsonl` in its directory: one line of JSON per completed step, and one per
evaluation. `step` counts completed steps: it is 1 after the first step. An evaluation of step 20 was answered by the
weights after 20 steps, or by these and newer ones. `attempt` counts recoveries of the run, `time` is in seconds since
1970. A value that was not finite is null. When a run goes back to a checkpoint, later lines move to
`metrics.attempt-K.jsonl`, where K is the attempt that ended. `metrics/` has the lines of each process.

An evaluation is written as one line when it is complete. Its means are over all rows except those that failed or were
rejected, which are counted in `eval/failed` and `eval/rejected`. Before the first step, after the last step, and
always with `evaluator.pin=true`, one version of the weights answers all rows; the newest version takes over only if
all servers with that version died and it cannot be loaded again. Otherwise an evaluation during training may be
answered by several versions, `eval/version_min` to `eval/version_max`; `step` is then the oldest. The terminal and
the summary show the same numbers and the number of failed rows. They name the step at which the evaluation was due,
`eval/due_step`, and the weights that answered, if these are others. If more rows failed or were rejected than
`evaluator.max_failed_share` allows, the score is null, and the reason is shown instead; an objective that is this score
is null too. If rows failed, the line also has the most frequent error of the rows as a text of at most 200 characters,
`eval/error`. In the same way the line of a step has `rollout/error`, if training groups failed since the previous step.
Trackers do not get these texts.

Trackers get the same names, with the step as the x-axis. A `*` stands for any text.

A sweep compares runs by their objective: the last value of the metric that `objective` names; without that key the
last `eval/score`, else `eval/accuracy`, else `eval/loss`, else `reward/mean` or `train/loss`.
"""


def render() -> str:
    """The whole page."""
    lines = _INTRO.splitlines()
    for group, meaning in GROUPS.items():
        lines += ["", f"## {group}", "", meaning, "", "| name | unit | description |", "|---|---|---|"]
        lines += [
            f"| `{name}` | {metric.unit} | {metric.help} |"
            for name, metric in METRICS.items()
            if name.startswith(f"{group}/")
        ]
    return "\n".join(lines) + "\n"
