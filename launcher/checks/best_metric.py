"""`saver.best.metric` names an evaluation that there is."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.environments import names_of
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.config.suggest import nearest
from areal_like.observe.metrics import find_metric
from areal_like.weights.transfer_path import COLLECTIVE_MODES

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "saver.best.metric"
ENVIRONMENT, PART = "env", "part"
"""What follows `eval/` for the rows of one environment, and for a part of the reward."""
MAIN_METRICS = ["score", "reward", "loss"]
SEVERAL = re.compile(r"(avg|pass)@(\d+)(_low|_high)?")


def best_metric_problems(config: "BaseExperimentConfig") -> Iterator[Problem]:
    best = config.saver.best
    if best is None:
        return
    _, first, *rest = best.metric.split("/")
    if several := SEVERAL.fullmatch(best.metric.rpartition("/")[2]):
        yield from _of_several(best.metric, several, _num_answers(config, first if rest else ""))
    benchmarks = [each.name for each in config.evaluator.benchmarks]
    if not rest:
        if first in benchmarks:
            yield Problem(KEY, f"{best.metric} is a benchmark; did you mean eval/{first}/score?")
        elif find_metric(best.metric) is None:
            yield Problem(KEY, f"no evaluation has a metric {first}{_hint('eval', first, MAIN_METRICS)}")
    elif first == ENVIRONMENT:
        yield from _named("environment", f"eval/{ENVIRONMENT}", rest, _environments(config))
    elif first != PART:
        yield from _named("benchmark", "eval", [first, *rest], benchmarks)
        if first in benchmarks and find_metric(best.metric) is None:
            name = "/".join(rest)
            yield Problem(KEY, f"no evaluation has a metric {name}{_hint(f'eval/{first}', name, MAIN_METRICS)}")


def late_evaluation_warnings(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Weights in files stay there for the evaluation; of those that are sent the trainer has the newest alone."""
    mode = config.actor.weight_update_mode if isinstance(config, GRPOConfig) else ""
    if mode in COLLECTIVE_MODES and config.saver.best is not None and config.evaluator.backend is not None:
        late = "an evaluation that begins late, as the one before it takes longer than the interval, uses later weights"
        yield Problem(
            "saver.best",
            f"{late} (evaluator.backend, actor.weight_update_mode={mode}), which have no checkpoint and cannot be the "
            "best; use actor.weight_update_mode=disk, or set a longer interval, such as evaluator.freq_steps",
        )


def _num_answers(config: "BaseExperimentConfig", benchmark: str) -> int:
    """Of each row of `valid_dataset` or of a benchmark."""
    evaluator = config.evaluator
    own = next((each.n_samples for each in evaluator.benchmarks if each.name == benchmark), None)
    return evaluator.n_samples if own is None else own


def _of_several(metric: str, several: re.Match[str], num_answers: int) -> Iterator[Problem]:
    """`avg@k` is of all answers of a row, `pass@k` also of powers of two of them."""
    kind, k = several[1], int(several[2])
    is_given = k == num_answers or (kind == "pass" and k < num_answers and k & (k - 1) == 0)
    if k < 2 or not is_given:
        rows = f"has {num_answers} answers" if num_answers > 1 else "has one answer"
        yield Problem(KEY, f"{metric} is given for no evaluation: each row {rows} (n_samples)")


def _named(kind: str, place: str, parts: list[str], names: list[str]) -> Iterator[Problem]:
    name, *rest = parts
    if name not in names:
        ending = "".join(f"/{each}" for each in rest)
        hint = _hint(place, name, names, ending) or (f"; there are {', '.join(names)}" if names else "; there is none")
        yield Problem(KEY, f"no {kind} is called {name}{hint}")


def _hint(place: str, name: str, names: list[str], ending: str = "") -> str:
    guess = nearest(name, names)
    return f"; did you mean {place}/{guess[0]}{ending}?" if guess else ""


def _environments(config: "BaseExperimentConfig") -> list[str]:
    return names_of(config.environments.train) if isinstance(config, GRPOConfig) else []
