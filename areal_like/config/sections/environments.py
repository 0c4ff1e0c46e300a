"""Section `environments`: what a run trains on, and how the rows of several environments are mixed."""

from typing import Any

from areal_like.config.fields import config, key, section
from areal_like.config.sections.data import RowSourceConfig, WorkflowSourceConfig
from areal_like.config.sections.generation import MAX_TOKENS
from areal_like.config.sections.reward import OwnRewardConfig

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
NAME_HINT = "a name of at most 64 letters, digits, `_`, `.` and `-`"


@config
class EnvironmentConfig(RowSourceConfig):
    """Rows to train on, with their own reward, workflow and length of answers."""

    id: str | None = key(None)
    """A task: a built-in one ({tasks}), `reasoning_gym:NAME`, or your own as `package.module:thing` or `file.py:thing`.
    Or a text environment (a class with `reset` and `step`, `gymnasium:NAME`, `textarena:NAME`, `openenv:ADDRESS`), or
    `owner/name` of verifiers. Null: the rows of `path`."""

    args: dict[str, Any] = key({})
    """Arguments of the task, checked against its signature."""

    python: str | None = key(None)
    """The Python with which an environment of verifiers is installed, such as `envs/wordle/bin/python`; a relative path
    starts in the working directory. Null: that of the run."""

    name: str | None = key(None, pattern=NAME_PATTERN, pattern_hint=NAME_HINT)
    """Name in metrics and trajectories. Null: made from `id` or `path`, such as `chain_sum` for
    `reasoning_gym:chain_sum`. Two with the same one need names."""

    ratio: float | None = key(None, gt=0)
    """Relative frequency of its rows, as `environments.mix.probabilities` of all environments; those without one have
    1. Null for all: in rotation."""

    reward: OwnRewardConfig = section(OwnRewardConfig)
    """How its answers are scored. Without a name: the reward of its task, else that of the experiment."""

    workflow: WorkflowSourceConfig = section(WorkflowSourceConfig)
    """How its rows become trajectories. Without a name: `workflow` of the experiment."""

    max_new_tokens: int | None = key(None, ge=1, le=MAX_TOKENS)
    """Maximum number of tokens of an answer, at most `gconfig.max_new_tokens`. Null: that key. Answers to held-out rows
    have `evaluator.gconfig.max_new_tokens` where it is set."""


@config
class EnvironmentMixConfig:
    """How the rows of several environments are mixed into the training rows. `train_dataset.shuffle` shuffles the mixed
    rows; with false they are used in the order of the mix. With `curriculum.type=by_environment` nothing is mixed: the
    environment of each prompt is drawn when it is needed."""

    strategy: str = key("interleave", choices=("interleave", "concatenate"))
    """Alternate between the environments (`interleave`), or join their rows one after the other (`concatenate`)."""

    probabilities: list[float] | None = key(None, ge=0)
    """When interleaving: relative frequency of each environment, in their order; the numbers need not add up to 1. The
    environment of each row is drawn. Null: the `ratio` of each, and in rotation where there is none."""

    stopping_strategy: str = key("all_exhausted", choices=("first_exhausted", "all_exhausted"))
    """When interleaving: end when the first environment has no further row (`first_exhausted`), or begin short ones
    again until every row of each was used (`all_exhausted`)."""

    seed: int | None = key(None)
    """Seed of the draws. Null: derived from the experiment's `seed`."""


@config
class EnvironmentsConfig:
    """Environments to train on. By default none: rows come from `task` or `train_dataset`."""

    train: list[EnvironmentConfig] = key([])
    """The environments, a list with `id` or `path` in each: `[{id: addition}, {id: "reasoning_gym:chain_sum"}]`. On the
    command line `environments.train.0.ratio=2` changes the first."""

    mix: EnvironmentMixConfig = section(EnvironmentMixConfig)
    """How several environments are mixed."""

    processes: int = key(1, ge=1)
    """Processes of each environment of verifiers in each episodes worker. One that ends is started again."""

    max_concurrent: int = key(64, ge=1)
    """Most episodes of an environment of verifiers that each worker plays at the same time. Those of a larger group
    wait for each other."""

    timeout_s: float = key(600.0, gt=0)
    """Most seconds of the episodes of one group in an environment of verifiers. They are then stopped, and have
    failed."""

    max_memory_gb: float | None = key(8.0, gt=0)
    """Most memory of each process of a text environment or an environment of verifiers. Null: no limit."""
