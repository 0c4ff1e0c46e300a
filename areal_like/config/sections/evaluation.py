"""When and on how much the model is evaluated."""

from areal_like.config.fields import config, key, section
from areal_like.config.sections.benchmarks import BenchmarksConfig
from areal_like.config.sections.frequency import FrequencyConfig
from areal_like.config.sections.generation import MAX_SAMPLES


@config
class EvaluatorConfig(FrequencyConfig):
    """How often rows of `valid_dataset` are evaluated, and which benchmarks run besides."""

    fileroot: str = key("${cluster.fileroot}")
    """Folder above the scores of evaluations. Follows `cluster.fileroot`, and `metrics.jsonl` has them then; with
    another they are also in `<fileroot>/<experiment_name>/<trial_name>/evaluations/evaluations.jsonl`."""

    num_examples: int = key(-1, ge=-1)
    """How many rows of `valid_dataset` each evaluation takes; -1 takes all of them."""

    n_samples: int = key(1, ge=1, le=MAX_SAMPLES)
    """Answers generated per row; the metrics are means over them."""

    pin: bool = key(False)
    """Whether servers keep the weights of an evaluation until it is complete; training goes on as far as
    `rollout.max_head_offpolicyness` lets it. The first and the last evaluation are always pinned. Others are else
    answered by the weights of the moment, and their versions shown."""

    max_failed_share: float = key(0.1, ge=0, le=1)
    """Share of the rows that may fail, or be rejected by the workflow, before an evaluation has no score. Those rows
    are never in the mean, and are shown beside it."""

    benchmarks: BenchmarksConfig = section(BenchmarksConfig)
    """Evaluation on environments of its own choice, by its own clock."""
