"""An evaluation as the Environments Hub takes it: its environment, its name, and its answers as samples."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from areal_like.config.benchmarks import benchmark_task
from areal_like.config.environments import environment_task
from areal_like.config.verifiers import package_of
from areal_like.models import display_name
from areal_like.observe.reading import EVALUATION
from areal_like.rollout.evaluation.answer_folders import VALID
from areal_like.rollout.evaluation.evaluated_rows import evaluated_rows
from areal_like.rollout.evaluation.evaluation import fact_of, result_metrics

FRAMEWORK = "areal-like"
JOINED = "--"
"""Stands for `/` in the name of an evaluation, and between its parts."""


def environment_of(config: Any, name: str) -> dict[str, str]:
    """By owner and name, or by name alone: then it is one of the login. Rows that are of no environment of verifiers
    have the name of their benchmark, those of `valid_dataset` that of the experiment."""
    if name == VALID:
        environments = config.environments.train
        task = environment_task(environments[0]) if len(environments) == 1 else None
    else:
        benchmark = next((each for each in config.evaluator.benchmarks if each.name == name), None)
        task = None if benchmark is None else benchmark_task(benchmark)
    package = None if task is None else package_of(task.name)
    if package is None:
        return {"name": config.experiment_name if name == VALID else name}
    return {"slug": f"{package.owner}/{package.name}"} if package.owner else {"name": package.name}


def evaluation_name(environment: Mapping[str, str], model: str) -> str:
    (called,) = environment.values()
    return f"{called}{JOINED}{model}".replace("/", JOINED)


def model_name(config: Any) -> str:
    """A name of the Hub as it is, of another path its last part."""
    name = display_name(config.actor.path)
    parts = PurePath(name).parts
    return name if len(parts) <= 2 and not name.startswith(("/", ".", "~")) else parts[-1]


def metadata_of(config: Any, name: str, step: int, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    known = {each.name or VALID: each for each in evaluated_rows(config, 1)}
    facts = {
        "experiment": config.experiment_name,
        "trial": config.trial_name,
        "evaluated": name,
        "step": step,
        "num_examples": len({line["row"] for line in lines}),
    }
    if name not in known:
        return facts
    return {**facts, "rollouts_per_example": known[name].n_samples, "sampling": dict(known[name].sampling)}


def metrics_of(lines: Sequence[dict[str, Any]], max_failed_share: float) -> dict[str, float]:
    """As in the metrics of the run; without those that have no value, which JSON cannot hold."""
    facts = [fact_of(line) for line in lines if "reward" in line]
    scores: dict[int, list[float]] = {}
    for line in lines:
        if "score" in line:
            scores.setdefault(line["row"], []).append(line["score"])
    num_missing = sum("reward" not in line for line in lines)
    num_rows = len({line["row"] for line in lines})
    measured = result_metrics(facts, list(scores.values()), num_missing > max_failed_share * num_rows)
    found = {name.removeprefix(EVALUATION): value for name, value in measured.items() if math.isfinite(value)}
    if "score" in found and not any(name.startswith("avg@") for name in found):
        found["avg@1"] = found["score"]
    return {**found, "rows": num_rows, "rows_without_result": num_missing}


def sample_of(line: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An answer or row without a score has an error, and neither `reward` nor `score`: it is no wrong answer."""
    messages = line.get("messages") or _messages(line)
    first = next((at for at, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    result = {"error": line["error"]} if "error" in line else {"reward": line["reward"], "score": line["score"]}
    info = {key: line[key] for key in ("row_hash", "finish", "tokens", "weights", "metrics") if key in line}
    return {
        "example_id": line["row"],
        "rollout_number": line["sample"],
        "task": line.get("env") or name,
        "prompt": messages[:first],
        "completion": messages[first:],
        **result,
        "metrics": line.get("rewards") or {},
        "info": info,
    }


def _messages(line: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row that failed has none."""
    if "prompt" not in line:
        return []
    return [{"role": "user", "content": line["prompt"]}, {"role": "assistant", "content": line["answer"]}]
