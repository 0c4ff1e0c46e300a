"""When and on how much the model is evaluated."""

from areal_like.config.benchmarks import BenchmarksConfig
from areal_like.config.fields import config, key, section
from areal_like.config.frequency import FrequencyConfig


@config
class EvaluatorConfig(FrequencyConfig):
    """How often rows of `valid_dataset` are evaluated, and which benchmarks run besides."""

    num_examples: int = key(-1, ge=-1)
    """How many rows of `valid_dataset` each evaluation takes; -1 takes all of them."""

    n_samples: int = key(1, ge=1)
    """Answers generated per row; the metrics are means over them."""

    benchmarks: BenchmarksConfig = section(BenchmarksConfig)
    """Evaluation on environments of its own choice, by its own clock."""
