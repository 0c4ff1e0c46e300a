"""When and on how much the model is evaluated."""

from areal_like.config.fields import config, key, optional_section, section
from areal_like.config.sections.checkpoints import FrequencyConfig
from areal_like.config.sections.environments import EnvironmentConfig
from areal_like.config.sections.generation import MAX_SAMPLES


@config
class EvalEnvironmentConfig(EnvironmentConfig):
    """One environment to evaluate on."""

    num_examples: int | None = key(None, ge=-1)
    """Examples taken from this environment; -1 takes all, 0 none. Null: the number said for all environments."""

    n_samples: int | None = key(None, ge=1)
    """Answers per example in this environment. Null: the number said for all environments."""


@config
class EvalSampling:
    """How benchmark answers are sampled. What is null is not sent, so the server's own default holds."""

    temperature: float | None = key(None, ge=0)
    """Sampling temperature; 0 always takes the likeliest token."""

    repetition_penalty: float | None = key(None, ge=0.01)
    """Above 1 makes tokens that were already used less likely, below 1 more likely."""

    top_p: float | None = key(None, gt=0, le=1)
    """Sample only from the likeliest tokens that together have this probability."""

    top_k: int | None = key(None, ge=-1)
    """Sample only from this many likeliest tokens; -1 sets no limit."""

    min_p: float | None = key(None, ge=0, le=1)
    """Leave out tokens less likely than this share of the likeliest one."""

    max_new_tokens: int | None = key(None, ge=1)
    """Longest answer, in tokens."""

    min_new_tokens: int | None = key(None, ge=0)
    """Shortest answer, in tokens: before that the end token cannot be sampled."""

    reasoning_effort: str | None = key(None, choices=("minimal", "low", "medium", "high"))
    """How long a reasoning model is asked to think, for chat templates and servers that know the word."""

    seed: int | None = key(None, ge=0)
    """Seed of the sampling noise. The answers to one example still differ from each other."""


@config
class EvalSaveHF:
    """Results as a dataset on the Hugging Face Hub."""

    dataset_name: str | None = key(None)
    """Name of the dataset, `owner/name`. Null: made from the environment and the model."""

    dataset_subset: str | None = key(None)
    """Subset of the dataset. Null: the id of the environment."""

    dataset_split: str | None = key(None)
    """Split of the dataset. Null: `evals`."""

    private: bool = key(False)
    """Create the dataset as a private one."""


@config
class EvalSaveConfig:
    """Where benchmark results go besides the metrics."""

    env_hub: bool = key(False)
    """Send results to the Environments Hub. Needs the network and a login there."""

    disk_path: str | None = key(None)
    """Folder for results as JSON lines. Null: a folder in the run directory."""

    hf: EvalSaveHF | None = optional_section(EvalSaveHF)
    """Results as a dataset on the Hugging Face Hub. Null: none; needs the network and a login there."""


@config
class BenchmarksConfig:
    """Benchmarks that run beside training. Without environments nothing runs."""

    freq_steps: int = key(100, ge=1)
    """Every so many versions of the weights the benchmarks run, and once more at the end."""

    num_examples: int = key(-1, ge=-1)
    """Examples per environment; -1 takes all."""

    n_samples: int = key(1, ge=1)
    """Answers per example. More of them give avg@k and pass@k a meaning."""

    eval_base_model: bool = key(True)
    """Also run the benchmarks on the model as it is before the first step."""

    environments: list[EvalEnvironmentConfig] = key([])
    """The environments to evaluate on. Each may set its own number of examples and answers."""

    gconfig: EvalSampling = section(EvalSampling)
    """How answers are sampled."""

    save: EvalSaveConfig = section(EvalSaveConfig)
    """Where results go besides the metrics."""


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
