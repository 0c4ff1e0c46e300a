"""What a run evaluates: rows of `valid_dataset` and of benchmarks, each with its interval and sampling."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from areal_like.config.benchmarks import BENCHMARKS, SPLIT, clock_of, is_on
from areal_like.config.experiment import GRPOConfig
from areal_like.config.sections.checkpoints import FrequencyConfig
from areal_like.config.sections.evaluation import EvalSampling
from areal_like.observe.reading import EVALUATION
from areal_like.rollout.sampling import evaluation_params


@dataclass(frozen=True, kw_only=True)
class EvaluatedRows:
    """`name` is that of a benchmark, and empty for `valid_dataset`. `key`: of its section, for messages."""

    name: str = ""
    key: str = "valid_dataset"
    clock: FrequencyConfig
    num_examples: int = -1
    n_samples: int = 1
    concurrent: int = 1
    """Rows evaluated at the same time: as many samples as training may have running."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    sampling_seed: int = 1

    @property
    def split(self) -> str:
        """The name of these rows among the datasets of a run."""
        return f"{SPLIT}{self.name}" if self.name else "valid"

    @property
    def prefix(self) -> str:
        """Of its metrics."""
        return f"{EVALUATION}{self.name}/" if self.name else EVALUATION


def evaluated_rows(config: GRPOConfig, max_concurrent: int) -> tuple[EvaluatedRows, ...]:
    """Those with an interval, `valid_dataset` first; without training steps all."""
    evaluator = config.evaluator
    parts: list[tuple[str, str, FrequencyConfig, int, int, tuple[EvalSampling, ...]]] = []
    if config.valid_dataset is not None and not config.bench:
        own = evaluator.num_examples, evaluator.n_samples, (evaluator.gconfig,)
        parts.append(("", "valid_dataset", evaluator, *own))
    for index, each in enumerate(evaluator.benchmarks):
        levels = (evaluator.gconfig, each.gconfig)
        n_samples = each.n_samples or evaluator.n_samples
        key, clock = f"{BENCHMARKS}.{index}", clock_of(evaluator, each)
        parts.append((each.name, key, clock, each.num_examples, n_samples, levels))
    run_seed = config.seed if config.gconfig.seed is None else config.gconfig.seed
    return tuple(
        EvaluatedRows(
            name=name,
            key=key,
            clock=clock,
            num_examples=num_examples,
            n_samples=n_samples,
            concurrent=max(1, max_concurrent * config.gconfig.n_samples // n_samples),
            sampling=evaluation_params(config.gconfig, n_samples, *levels),
            sampling_seed=next((level.seed for level in levels[::-1] if level.seed is not None), run_seed),
        )
        for name, key, clock, num_examples, n_samples, levels in parts
        if is_on(clock) or config.total_train_steps == 0
    )
