"""Section `reward`: how an answer is scored."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from areal_like.config.fields import Auto, config, key

REWARD_MODEL = "model"
"""Name of the built-in reward that a reward model gives; `path` in its arguments is the model."""
REWARD_OF_TASK = "task"
"""Name of the task's own reward, for sums."""

SCORE_PART = "score"
"""The part of a reward that evaluations report; it is not added to the reward."""
ANSWER_SEED = "answer_seed"
"""An argument of rewards that draw by chance: a number of the answer, the same whenever the run is repeated."""

SANDBOXES = ("bubblewrap", "rlimits")
"""Kinds of sandbox, the strongest first."""


@config
class RewardPartConfig:
    """One reward of a weighted sum."""

    name: str = key(required=True)
    """As `reward.name`; `task` is the reward of the task."""

    weight: float = key(1.0)
    """Its value is multiplied by this before it is added. Negative: a penalty."""

    args: dict[str, Any] = key({})
    """Arguments of this reward, as `reward.args`."""

    label: str | None = key(None, pattern=r"[\w-]+(\.[\w-]+)*", pattern_hint="letters, digits, `_`, `-` and `.`")
    """Its name in metrics, `reward/part/LABEL`. Null: that of the reward. Two with the same name need labels."""


@config
class RewardSourceConfig:
    """Which reward scores an answer."""

    name: str | None = key(None)
    """A built-in reward ({rewards}), or your own as `package.module:thing` or `file.py:thing`. Null: the reward of the
    task. `model` queries a reward model, served by a process of this run; `path` in `args` is its folder, or the run
    that trained it."""

    args: dict[str, Any] = key({})
    """Arguments of the reward, checked against its signature. Add one with `+reward.args.name=`."""

    parts: list[RewardPartConfig] = key([])
    """Instead of `name`: a weighted sum of several rewards, a list of `name`, `weight`, `args` and `label`. Each part
    is logged without its weight. Evaluations report the first one as their score. On the command line
    `reward.parts.0.weight=2` changes the first."""


@config
class RewardConfig(RewardSourceConfig):
    """How an answer is scored."""

    timeout_s: float = key(15.0, gt=0)
    """Timeout of one reward, in seconds. It is then stopped and counted as an error, never as a reward of 0."""

    max_failed_share: float = key(0.5, ge=0, lt=1)
    """Share of the answers to a prompt whose reward may fail, after retries. Up to this share they are left without a
    reward, out of the loss and out of the group's baseline; above it the whole group is generated again, up to
    `rollout.request_retries` times, and then left out. 0: no answer may lack its reward."""

    sandbox: str = key("bubblewrap", choices=SANDBOXES)
    """Where programs that a model wrote run. `bubblewrap` gives each its own namespaces, and a start is refused where
    the machine does not allow them. `rlimits` needs none, but is weaker: limits, Landlock and a filter of system calls
    alone; the plan lists what it does not hold."""

    processes: int | Auto = key("auto", ge=1, le=256)
    """Number of processes in which each episodes worker computes rewards, one answer at a time in each; an `async`
    reward computes all its answers in one. `auto` derives it from the number of cores. Answers that take far longer
    than usual are not counted: each waits for its deadline in a process beside these, at most 32 times as many."""

    max_memory_gb: float | None = key(8.0, gt=0)
    """Most memory of one reward with all processes that it starts. A reward that exceeds it is stopped, and counted as
    an error. Null: no limit, for this key and those below."""

    max_cpu_s: float | None = key(None, gt=0)
    """Most CPU time for one answer, in seconds, of all processes of the reward together."""

    max_processes: int | None = key(256, ge=1)
    """Most processes that one reward may run at the same time, its own included."""

    max_file_gb: float | None = key(1.0, gt=0)
    """Largest file that a reward may write."""


@config
class OwnRewardConfig(RewardSourceConfig):
    """How the answers of a benchmark or an environment are scored."""

    timeout_s: float | None = key(None, gt=0)
    """Timeout of one reward, in seconds. Null: `reward.timeout_s`."""

    sandbox: str | None = key(None, choices=SANDBOXES)
    """Where programs that a model wrote run. Null: `reward.sandbox`."""

    processes: int | None = key(None, ge=1, le=256)
    """Number of processes in which each episodes worker computes these rewards. Null: `reward.processes`."""


class NamedReward(NamedTuple):
    """A reward of the configuration. `section` is its key: `reward`, or `reward.parts.0`."""

    section: str
    name: str
    args: dict[str, Any]
    weight: float = 1.0
    label: str = ""


def named_rewards(name: Any, args: Any, parts: Sequence[Any]) -> list[NamedReward]:
    """The reward by name, or those of the sum. `parts` have the keys of RewardPartConfig as entries."""
    if isinstance(name, str):
        return [NamedReward("reward", name, args or {})]
    return [
        NamedReward(
            f"reward.parts.{index}",
            part["name"],
            part["args"] or {},
            part["weight"],
            part["label"] or _label(part["name"]),
        )
        for index, part in enumerate(parts)
    ]


def configured_rewards(reward: RewardSourceConfig) -> list[NamedReward]:
    """Empty: the reward is that of the task, if it has one."""
    return named_rewards(reward.name, reward.args, [vars(part) for part in reward.parts])


def reward_model(reward: RewardConfig) -> NamedReward | None:
    """The one that queries a reward model."""
    return next((each for each in configured_rewards(reward) if each.name == REWARD_MODEL), None)


def _label(name: str) -> str:
    """`rewards.py:short` -> `short`"""
    return name.rpartition(":" if ":" in name else ".")[2]
