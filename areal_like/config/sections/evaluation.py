"""Section `evaluator`: when and on which rows the model is evaluated; benchmarks."""

from areal_like.config.fields import config, key, no_effect, not_built, optional_section, refused, section
from areal_like.config.sections.checkpoints import FrequencyConfig
from areal_like.config.sections.environments import EnvironmentConfig
from areal_like.config.sections.generation import MAX_SAMPLES


@config
class EvalEnvironmentConfig(EnvironmentConfig):
    """One environment to evaluate on."""

    num_examples: int | None = key(None, ge=-1)
    """Number of examples of this environment; -1 is all. Null: the number set for all environments."""

    n_samples: int | None = key(None, ge=1)
    """Answers per example in this environment. Null: the number set for all environments."""


@config
class EvalSampling:
    """How benchmark answers are sampled. Null keys are not sent: the server's default applies."""

    temperature: float | None = key(None, ge=0)
    """Sampling temperature; 0 always takes the most likely token."""

    repetition_penalty: float | None = key(None, ge=0.01)
    """Values above 1 make tokens that were already used less likely, below 1 more likely."""

    top_p: float | None = key(None, gt=0, le=1)
    """Sample only from the most likely tokens that together have this probability."""

    top_k: int | None = key(None, ge=-1)
    """Sample only from this many of the most likely tokens; -1 sets no limit."""

    min_p: float | None = key(None, ge=0, le=1)
    """Drop tokens less likely than this fraction of the most likely token's probability."""

    max_new_tokens: int | None = key(None, ge=1)
    """Maximum number of tokens of an answer."""

    min_new_tokens: int | None = key(None, ge=0)
    """Minimum number of tokens of an answer: before it, end tokens are suppressed."""

    reasoning_effort: str | None = key(None, choices=("minimal", "low", "medium", "high"))
    """Requested length of the reasoning, for chat templates and servers that support it."""

    seed: int | None = key(None, ge=0)
    """Seed of the sampling noise; the answers to one example still differ."""


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
    """Where benchmark results are written besides the metrics."""

    env_hub: bool = key(False)
    """Send results to the Environments Hub. Needs the network and a login there."""

    disk_path: str | None = key(None)
    """Folder for results as JSON lines. Null: a folder in the run directory."""

    hf: EvalSaveHF | None = optional_section(EvalSaveHF)
    """Results as a dataset on the Hugging Face Hub; needs the network and a login there. Null: none."""


@config
class BenchmarksConfig:
    """Benchmarks that run during training. Without environments none runs."""

    freq_steps: int = key(100, ge=1)
    """Run the benchmarks every n versions of the weights, and at the end."""

    num_examples: int = key(-1, ge=-1)
    """Examples per environment; -1 takes all."""

    n_samples: int = key(1, ge=1)
    """Answers per example, for avg@k and pass@k."""

    eval_base_model: bool = key(True)
    """Also run the benchmarks on the model before the first step."""

    environments: list[EvalEnvironmentConfig] = key([])
    """The environments to evaluate on. Each may override the numbers of examples and answers."""

    gconfig: EvalSampling = section(EvalSampling)
    """How answers are sampled."""

    save: EvalSaveConfig = section(EvalSaveConfig)
    """Where results are written besides the metrics."""


@config
class EvaluatorConfig(FrequencyConfig):
    """How often rows of `valid_dataset` are evaluated, and which benchmarks run."""

    fileroot: str = key("${cluster.fileroot}")
    """Root folder for the scores of evaluations. Follows `cluster.fileroot`: they are in `metrics.jsonl`. With another
    one they are also in `<fileroot>/<experiment_name>/<trial_name>/evaluations/evaluations.jsonl`."""

    num_examples: int = key(-1, ge=-1)
    """Number of rows of `valid_dataset` per evaluation; -1 is all."""

    n_samples: int = key(
        1,
        ge=1,
        le=MAX_SAMPLES,
        rules=(
            refused(
                "supervised training evaluates a loss and samples no answers; set it to 1",
                kinds=("sft", "reward_model"),
            ),
        ),
    )
    """Answers per row; metrics are means over them."""

    pin: bool = key(False)
    """Keep the weights of the servers fixed until an evaluation is complete; training continues as far as
    `rollout.max_head_offpolicyness` allows. The first and the last evaluation are always pinned. False: the others use
    the current weights, and their versions are shown."""

    max_failed_share: float = key(
        0.1,
        ge=0,
        le=1,
        rules=(no_effect("supervised training evaluates a loss, which every row has", kinds=("sft", "reward_model")),),
    )
    """Maximum fraction of rows that fail or are rejected by the workflow; above it an evaluation has no score. Such
    rows are not part of the mean, and are shown beside it."""

    benchmarks: BenchmarksConfig = section(BenchmarksConfig, not_built("evaluation on environments", "leave it out"))
    """Evaluation on environments, with a separate interval."""
