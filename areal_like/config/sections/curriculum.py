"""Section `curriculum`: which prompts are drawn, and which finished groups are trained on."""

from areal_like.config.fields import config, key, no_effect

POOLS, ONLINE = "difficulty_pool", "online_difficulty"
DRAWS = no_effect(unless="type", unless_is=("simple", POOLS, ONLINE))
ONLY_POOLS = no_effect(unless="type", unless_is=(POOLS,))
ONLY_ONLINE = no_effect(unless="type", unless_is=(ONLINE,))


@config
class CurriculumConfig:
    """Which prompts are drawn next and which finished groups are trained on, by the mean raw reward of a group."""

    type: str = key("none", choices=("none", "simple", POOLS, ONLINE))
    """`none` uses the data in order, the others draw a batch at a time, no prompt twice in it, and any prompt again in
    the next. `simple` draws from all prompts alike, `difficulty_pool` fixed fractions of easy, normal and hard prompts,
    `online_difficulty` as `simple`, and trains only on groups neither too easy nor too hard."""

    from_scratch: bool = key(True, rules=(ONLY_POOLS,))
    """Start without results: all prompts are normal. False sorts them by the columns `metadata` and `rollouts` of the
    data, as JSON, which must exist: by `difficulty` (`easy`, `normal` or `hard`) or `reward` in `metadata`, else by the
    mean `reward` of the rollouts. All rows are read at the start."""

    seed: int | None = key("${seed}", rules=(DRAWS,))
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
