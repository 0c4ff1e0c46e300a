"""Section `curriculum`: which prompts are drawn, and which finished groups are trained on."""

from typing import Any

from areal_like.config.fields import config, key, no_effect, section

POOLS, ONLINE, BY_ENVIRONMENT = "difficulty_pool", "online_difficulty", "by_environment"
RESULT_COLUMNS = ("metadata", "rollouts")
"""Columns of the data with the results of an earlier run."""
DRAWS = no_effect(unless="type", unless_is=("simple", POOLS, ONLINE, BY_ENVIRONMENT))
ONLY_POOLS = no_effect(unless="type", unless_is=(POOLS,))
ONLY_ONLINE = no_effect(unless="type", unless_is=(ONLINE,))


@config
class SamplerConfig:
    """A sampler of your own, which draws the rows of each batch."""

    name: str | None = key(None)
    """A class of your own, `package.module:Thing` or `file.py:Thing`, with `draw(self, rows, count, random)`; then
    `curriculum.type` must be `none`. Null: as `curriculum.type` says."""

    args: dict[str, Any] = key({})
    """Arguments of the sampler, checked against its signature. Add one with `+curriculum.sampler.args.name=`."""


@config
class GateConfig:
    """What a finished group must pass to be trained on."""

    name: str = key(required=True)
    """A built-in gate ({gates}), or a class of your own, `package.module:Thing` or `file.py:Thing`, with
    `admits(self, group)`."""

    args: dict[str, Any] = key({})
    """Arguments of the gate, checked against its signature."""


@config
class CurriculumConfig:
    """Which prompts are drawn next and which finished groups are trained on, by the mean raw reward of a group."""

    type: str = key("none", choices=("none", "simple", POOLS, ONLINE, BY_ENVIRONMENT))
    """`none` uses the data in order. The others draw batches, no prompt twice in one: `simple` from all prompts alike,
    `difficulty_pool` fractions of easy, normal and hard prompts, `online_difficulty` as `simple`, but too easy and too
    hard groups are left out. `by_environment` draws each prompt by itself, some twice: first its environment by
    `ratio`, else by its number of prompts."""

    from_scratch: bool = key(True, rules=(ONLY_POOLS,))
    """Start without results: all prompts are normal. False sorts them by the columns `metadata` and `rollouts` of the
    data, as JSON, which must exist: by `difficulty` (`easy`, `normal` or `hard`) or `reward` in `metadata`, else by the
    mean `reward` of the rollouts. All rows are read at the start."""

    sampler: SamplerConfig = section(SamplerConfig)
    """What draws rows instead of `type`."""

    gates: list[GateConfig] = key([])
    """A group is trained on if each of these admits it, and `online_difficulty_filtering` and the limits of `type` as
    well: `[{name: mean_reward, args: {low: 0.1}}, {name: "gates.py:Short"}]`."""

    seed: int | None = key("${seed}")
    """Seed of the draws. Follows the experiment's `seed`."""

    easy_border: float = key(0.8, ge=0, le=1, rules=(ONLY_POOLS,))
    """A prompt whose mean reward is above this becomes easy."""

    hard_border: float = key(0.2, ge=0, le=1, rules=(ONLY_POOLS,))
    """A prompt whose mean reward is below this becomes hard."""

    easy_fraction: float = key(0.1, ge=0, le=1, rules=(ONLY_POOLS,))
    """Fraction of a batch drawn from easy prompts, rounded down; normal ones fill the rest, also where there are too
    few easy ones."""

    hard_fraction: float = key(0.1, ge=0, le=1, rules=(ONLY_POOLS,))
    """Fraction of a batch drawn from hard prompts, rounded down; normal ones fill the rest, also where there are too
    few hard ones."""

    min_reward: float | None = key(0.01, ge=0, le=1, rules=(ONLY_ONLINE,))
    """Groups with a lower mean reward are not trained on. Null: no lower limit."""

    max_reward: float | None = key(0.99, ge=0, le=1, rules=(ONLY_ONLINE,))
    """Groups with a higher mean reward are not trained on. Null: no upper limit."""

    easy_threshold: float | None = key(None, rules=(DRAWS,))
    """Prompts with at least this mean reward are set aside as easy and no longer drawn, until fewer prompts than a
    batch are left: then all are drawn again. Null: none."""

    hard_threshold: float | None = key(None, rules=(DRAWS,))
    """Prompts with at most this mean reward are set aside as hard and no longer drawn, as `easy_threshold`. Null:
    none."""

    easy_return_fraction: float = key(0.0, ge=0, le=1, rules=(no_effect(unless="easy_threshold"),))
    """Fraction of the easy prompts set aside that is drawn again after a checkpoint is loaded."""

    hard_return_fraction: float = key(0.0, ge=0, le=1, rules=(no_effect(unless="hard_threshold"),))
    """Fraction of the hard prompts set aside that is drawn again after a checkpoint is loaded."""

    online_difficulty_filtering: bool = key(False)
    """Do not train on groups whose mean reward is exactly 0 or 1, whatever `type` is: with a group baseline they give
    no gradient."""
