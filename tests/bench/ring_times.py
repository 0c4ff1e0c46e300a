"""Times of a run from its files: the start up to the first step, the parts of a step, when it had learnt."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from areal_like.observe.evaluations import evaluation_lines
from areal_like.observe.reading import JOINED, Line, is_evaluation, read_lines
from areal_like.process.run import LEDGER
from areal_like.rollout.ledger import read_ledger
from tests.bench.watched import GUARDIAN, LAUNCHER, Watched

LEARNT = 0.9
WARM = 2
"""First steps, left out of means."""
TRAINER_PARTS = ("wait", "prepare", "logprobs", "train", "publish", "checkpoint")
SHORT = {"perf/cpu_s": "trainer_cpu_s"}
SERVER_PARTS = ("generate_busy", "update_load", "update_stall", "serve_delay")


def ring(run_dir: Path, watched: Watched) -> dict[str, Any]:
    """All measurements of one run."""
    lines = read_lines(run_dir / JOINED)
    steps = {line["step"]: line for line in lines if not is_evaluation(line) and "perf/step_s" in line}
    scores = [line for line in evaluation_lines(lines) if "eval/score" in line]
    ordered = [steps[number] for number in sorted(steps)]
    times = [(line["time"], sum(watched.cpu_at(line["time"]).values())) for line in ordered]
    by_role = _difference(watched.cpu_at(times[0][0]), watched.cpu_at(times[-1][0]), len(times) - 1)
    return {
        "exit_code": watched.exit_code,
        "steps": len(ordered),
        "wall_s": watched.wall_s,
        "cpu_s": watched.cpu_s,
        "first_step_s": times[0][0] - watched.began,
        "start": start(run_dir, watched, ordered[0]["time"]),
        **per_step(times),
        "cpu_s_per_step_by_process": by_role,
        "where_a_step_goes": where(ordered[WARM:] or ordered),
        "learnt": learnt(
            [(line["step"], line["eval/score"], line["time"]) for line in scores],
            watched.began,
            times[0][0],
            lambda when: sum(watched.cpu_at(when).values()),
        ),
        "scores": [[line["step"], line["eval/score"]] for line in scores],
        "rewards": [line["reward/mean"] for line in ordered],
    }


def plain(result: dict[str, Any], wall_s: float, cpu_s: float, began: float) -> dict[str, Any]:
    """The same measurements of the plain loop."""
    times = [(when, cpu) for _, when, cpu in result["steps"]]
    count = len(times)
    cpu_by_score = {when: cpu for _, _, when, cpu in result["scores"]}
    return {
        "steps": count,
        "threads": result["threads"],
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "first_step_s": times[0][0] - began,
        **per_step(times),
        "where_a_step_goes": {f"{name}_s": seconds / count for name, seconds in result["parts_s"].items()},
        "learnt": learnt(
            [(step, score, when) for step, score, when, _ in result["scores"]],
            began,
            times[0][0],
            lambda when: cpu_by_score[when],
        ),
        "scores": [[step, score] for step, score, _, _ in result["scores"]],
        "rewards": result["rewards"],
    }


def per_step(times: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    """From the end of the first step to the end of the last."""
    (first, cpu_first), (last, cpu_last), count = times[0], times[-1], len(times) - 1
    if count < 1:
        return {"wall_s_per_step": None, "cpu_s_per_step": None}
    return {"wall_s_per_step": (last - first) / count, "cpu_s_per_step": (cpu_last - cpu_first) / count}


def learnt(scores: Sequence[tuple[int, float, float]], began: float, first_step: float, cpu_at: Any) -> dict[str, Any]:
    """When the score first reached LEARNT: since the command, and since the first step. None if it never did."""
    reached = next((entry for entry in scores if entry[1] >= LEARNT), None)
    if reached is None:
        return {"score": LEARNT, "step": None, "wall_s": None, "wall_s_from_first_step": None, "cpu_s": None}
    step, _, when = reached
    times = {"wall_s": when - began, "wall_s_from_first_step": when - first_step, "cpu_s": cpu_at(when)}
    return {"score": LEARNT, "step": step, **times}


def start(run_dir: Path, watched: Watched, first_step: float) -> dict[str, float]:
    """Seconds from the command to each event up to the first step, in order of time."""
    events = {
        "the first process of the run is there": min(
            (when for role, when in watched.seen.items() if role not in (LAUNCHER, GUARDIAN)), default=None
        ),
        "the controller knows the rows": _logged(run_dir / "logs/rollout-0.log", " rows, "),
        "the server is ready": _logged(run_dir / "logs/server-0.log", "ready at"),
        "the trainer is ready": _logged(run_dir / "logs/trainer-0.log", "training from step"),
        "the first step is done": first_step,
    }
    names = {"submitted": "the first group is handed out", "finished": "the first group is finished"}
    names["batched"] = "the first batch is there"
    for event in read_ledger(run_dir / "rollouts" / LEDGER):
        if event["event"] in names and event.get("evaluation") is None:
            events.setdefault(names[event["event"]], event["time"])
    known = {name: when - watched.began for name, when in events.items() if when is not None}
    return dict(sorted(known.items(), key=lambda item: item[1]))


def where(steps: Sequence[Line]) -> dict[str, float]:
    """Means over the steps: parts of the trainer's step, and of the servers' work meanwhile."""
    names = [f"perf/{part}_s" for part in ("step", *TRAINER_PARTS, *SERVER_PARTS)]
    names += ["perf/generate_busy_share", "perf/cpu_s", "offpolicy/staleness_mean"]
    means = {}
    for name in names:
        # Not every step has a checkpoint: what is missing took no time.
        values = [line.get(name) or 0.0 for line in steps]
        if any(name in line for line in steps):
            means[SHORT.get(name, name.partition("/")[2])] = fmean(values)
    return means


def ceiling(parts: dict[str, float]) -> float | None:
    """Upper bound of the asynchronous speed-up: (generation + training) / the longer of the two."""
    generation = parts.get("generate_busy_s")
    if generation is None:
        return None
    training = parts["step_s"] - parts.get("wait_s", 0.0)
    longer = max(generation, training)
    return (generation + training) / longer if longer > 0 else None


def _difference(first: dict[str, float], last: dict[str, float], count: int) -> dict[str, float]:
    return {role: (used - first.get(role, 0.0)) / max(1, count) for role, used in sorted(last.items())}


def _logged(path: Path, words: str) -> float | None:
    """Time of the first line of a log that contains `words`; lines begin with date and time."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if words in line:
            day, clock = line.split()[:2]
            seconds, _, thousandths = clock.partition(",")
            return time.mktime(time.strptime(f"{day} {seconds}", "%Y-%m-%d %H:%M:%S")) + int(thousandths) / 1000
    return None
