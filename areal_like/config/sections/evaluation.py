"""Section `evaluator`: when and on which rows the model is evaluated; benchmarks."""

from typing import Any

from areal_like.config.fields import config, key, no_effect, optional_section, refused, section
from areal_like.config.sections.checkpoints import FrequencyConfig
from areal_like.config.sections.data import RowSourceConfig, TaskConfig
from areal_like.config.sections.generation import MAX_SAMPLES, MAX_SAMPLING_VALUE, MAX_TOKENS, MIN_REPETITION_PENALTY
from areal_like.config.sections.reward import OwnRewardConfig

SUPERVISED = ("sft", "reward_model")
NAME_PATTERN = r"(?!((part|valid|env)|.*\.partial)$)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
NAME_HINT = "a name of at most 64 letters, digits, `_`, `.` and `-`, other than `part`, `valid`, `env` and `*.partial`"


@config
class EvalSampling:
    """How answers are sampled in evaluations. A key that is null follows `evaluator.gconfig`, and there the
    experiment's `gconfig`."""

    greedy: bool | None = key(None)
    """Always take the most likely token. Null: where a row has one answer, and temperature, top_p, top_k and min_p are
    null here. One of these four in a benchmark replaces `evaluator.gconfig.greedy` for it."""

    temperature: float | None = key(None, ge=0, le=MAX_SAMPLING_VALUE)
    """Sampling temperature; 0 always takes the most likely token."""

    repetition_penalty: float | None = key(None, ge=MIN_REPETITION_PENALTY, le=MAX_SAMPLING_VALUE)
    """Values above 1 make tokens that were already used less likely, below 1 more likely."""

    top_p: float | None = key(None, gt=0, le=1)
    """Sample only from the most likely tokens that together have this probability."""

    top_k: int | None = key(None, ge=-1, le=MAX_TOKENS)
    """Sample only from this many of the most likely tokens; -1 sets no limit."""

    min_p: float | None = key(None, ge=0, le=1)
    """Drop tokens less likely than this fraction of the most likely token's probability."""

    max_new_tokens: int | None = key(None, ge=1, le=MAX_TOKENS)
    """Maximum number of tokens of an answer."""

    min_new_tokens: int | None = key(None, ge=0, le=MAX_TOKENS)
    """Minimum number of tokens of an answer: before it, end tokens are suppressed."""

    max_tokens: int | None = key(None, ge=1, le=MAX_TOKENS)
    """Maximum number of tokens of prompt and answer together."""

    stop: list[str] | None = key(None)
    """Texts that end an answer as soon as it contains one of them."""

    reasoning_effort: str | None = key(None, choices=("minimal", "low", "medium", "high"))
    """Requested length of the reasoning: the variable `reasoning_effort` of the chat template, and a parameter of the
    requests to an API. No effect on prompts without a chat template, and on models whose template does not read it."""

    seed: int | None = key(None, ge=0)
    """Seed of the sampling noise; the answers to one example still differ."""


@config
class EvalSaveHF:
    """Results as a dataset on the Hugging Face Hub."""

    dataset_name: str | None = key(None)
    """Name of the dataset, `owner/name`. Null: `<experiment_name>-<trial_name>` of the owner of the login."""

    dataset_subset: str | None = key(None)
    """Subset of the dataset; of several evaluations the beginning of their subsets. Null: the name of the benchmark,
    `valid` for `valid_dataset`."""

    dataset_split: str | None = key(None)
    """Split of the dataset, for the answers of the last evaluation alone. Null: one for each, `step_000020`."""

    private: bool = key(False)
    """Create the dataset as a private one. No effect on one that exists."""


@config
class EvalSaveConfig:
    """Where the answers of evaluations are written."""

    env_hub: bool = key(
        False, rules=(no_effect("supervised training evaluates a loss and samples no answers", kinds=SUPERVISED),)
    )
    """Push each evaluation with its answers to Prime Intellect's Environments Hub when the run is done. Needs
    prime-evals, and a login there (PRIME_API_KEY)."""

    disk_path: str | None = key(
        None, rules=(no_effect("supervised training evaluates a loss and samples no answers", kinds=SUPERVISED),)
    )
    """Folder for the answers of all runs as JSON lines, `<experiment_name>/<trial_name>/step_N/NAME.jsonl`; a relative
    one is in the working directory. Null: `evaluations` in the run directory."""

    as_dataset: bool = key(
        False, rules=(no_effect("supervised training evaluates a loss and samples no answers", kinds=SUPERVISED),)
    )
    """Also write the answers as a dataset for `datasets.load_dataset`, `dataset` in that folder: what was evaluated is
    a subset, each step a split. Needs pyarrow."""

    hf: EvalSaveHF | None = optional_section(
        EvalSaveHF, no_effect("supervised training evaluates a loss and samples no answers", kinds=SUPERVISED)
    )
    """Upload the answers of all evaluations to the Hugging Face Hub when the run is done, as the dataset of
    `as_dataset`. Needs a login there (HF_TOKEN). Null: no upload."""


@config
class BenchmarkConfig(RowSourceConfig):
    """Rows to evaluate on, with their own reward, sampling and interval."""

    name: str = key(required=True, pattern=NAME_PATTERN, pattern_hint=NAME_HINT)
    """Name in metrics, `eval/NAME/score`, and of the file with the answers."""

    id: str | None = key(None)
    """A task as in `environments.train[].id`, such as `reasoning_gym:chain_sum`; its held-out rows are used."""

    args: dict[str, Any] = key({})
    """Arguments of the task that `id` names."""

    python: str | None = key(None)
    """The Python with which an environment of verifiers is installed, as in `environments.train[].python`."""

    task: TaskConfig = section(TaskConfig)
    """The task whose rows are used; not with `path` or `id`."""

    reward: OwnRewardConfig = section(OwnRewardConfig)
    """How answers are scored. Without a name: the reward of the benchmark's own task, else that of the experiment."""

    num_examples: int = key(-1, ge=-1)
    """Number of rows, the same each time, 1 or more; -1 is all."""

    n_samples: int | None = key(None, ge=1, le=MAX_SAMPLES)
    """Answers per row, for pass@k. Null: `evaluator.n_samples`."""

    gconfig: EvalSampling = section(EvalSampling)
    """How answers are sampled."""

    freq_epochs: int | None = key(None, ge=1)
    """Interval in passes over the training data. If all three intervals are null, they are those of `evaluator`."""

    freq_steps: int | None = key(None, ge=1)
    """Interval in training steps."""

    freq_secs: int | None = key(None, ge=1)
    """Interval in seconds, checked after each step."""


@config
class EvaluatorConfig(FrequencyConfig):
    """When, on which rows, and how the model is evaluated: rows of `valid_dataset`, and benchmarks."""

    fileroot: str = key("${cluster.fileroot}")
    """Root folder for the scores of evaluations. Follows `cluster.fileroot`: they are in `metrics.jsonl`. With another
    one they are also in `<fileroot>/<experiment_name>/<trial_name>/evaluations/evaluations.jsonl`."""

    num_examples: int = key(-1, ge=-1)
    """Number of rows of `valid_dataset` per evaluation, 1 or more; -1 is all."""

    n_samples: int = key(
        1,
        ge=1,
        le=MAX_SAMPLES,
        rules=(refused("supervised training evaluates a loss and samples no answers; set it to 1", kinds=SUPERVISED),),
    )
    """Answers per row; metrics are means over them."""

    gconfig: EvalSampling = section(
        EvalSampling, no_effect("supervised training evaluates a loss and samples no answers", kinds=SUPERVISED)
    )
    """How answers are sampled in all evaluations. By default as in training, and greedily where a row has one
    answer."""

    eval_base_model: bool = key(
        True, rules=(no_effect("supervised training evaluates after its steps", kinds=SUPERVISED),)
    )
    """Also evaluate the model before the first step."""

    backend: str | None = key(
        None, rules=(no_effect("supervised training evaluates a loss in the trainer", kinds=SUPERVISED),)
    )
    """Servers for evaluations alone, beside those of `rollout.backend`, of any engine and size: `auto` is one like
    those, `vllm:d2t2` are two on two GPUs each. They keep the weights that are evaluated, and the other servers
    generate for training alone. Null: evaluations share the servers of training."""

    pin: bool = key(False)
    """Keep the weights of the servers fixed until an evaluation is complete; training continues as far as
    `rollout.max_head_offpolicyness` allows. The first and the last evaluation are always pinned. False: the others use
    the current weights, and their versions are shown."""

    max_failed_share: float = key(
        0.1,
        ge=0,
        le=1,
        rules=(no_effect("supervised training evaluates a loss, which every row has", kinds=SUPERVISED),),
    )
    """Maximum fraction of rows that fail or are rejected by the workflow; above it an evaluation has no score. Such
    rows are not part of the mean, and are shown beside it."""

    benchmarks: list[BenchmarkConfig] = key(
        [],
        rules=(refused("supervised training evaluates a loss and samples no answers; leave it out", kinds=SUPERVISED),),
    )
    """Further rows to evaluate on, each with a name: `[{name: gsm8k, path: openai/gsm8k, n_samples: 4}]`."""

    save: EvalSaveConfig = section(EvalSaveConfig)
    """Where the answers are written."""
