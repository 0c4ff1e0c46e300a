"""Which prompts are drawn, by what is known of their difficulty."""

from areal_like.config.fields import config, key


@config
class CurriculumConfig:
    """Which prompts are drawn next and which finished groups are trained on, judged by mean raw reward of a group."""

    type: str = key("none", choices=("none", "simple", "difficulty_pool", "online_difficulty"))
    """`none` goes through the data in order, `simple` draws at random, `difficulty_pool` draws easy, normal and hard
    prompts in fixed shares, `online_difficulty` trains only on groups neither too easy nor too hard."""

    from_scratch: bool = key(True)
    """Begin without knowledge. False reads earlier results from the columns `metadata` and `rollouts` of the data,
    which must be there."""

    seed: int | None = key("${seed}")
    """Seed of the draws. Follows the experiment's `seed`."""

    easy_border: float = key(0.8, ge=0, le=1)
    """`difficulty_pool`: a prompt whose mean reward is above this becomes easy."""

    hard_border: float = key(0.2, ge=0, le=1)
    """`difficulty_pool`: a prompt whose mean reward is below this becomes hard."""

    easy_fraction: float = key(0.1, ge=0, le=1)
    """`difficulty_pool`: share of a batch drawn from easy prompts. Normal ones fill up what is lacking."""

    hard_fraction: float = key(0.1, ge=0, le=1)
    """`difficulty_pool`: share of a batch drawn from hard prompts. Normal ones fill up what is lacking."""

    min_reward: float | None = key(0.01, ge=0, le=1)
    """`online_difficulty`: groups with a lower mean reward are not trained on. Null: no lower limit."""

    max_reward: float | None = key(0.99, ge=0, le=1)
    """`online_difficulty`: groups with a higher mean reward are not trained on. Null: no upper limit."""

    easy_threshold: float | None = key(None)
    """Prompts whose mean reward reaches this are set aside as easy and no longer drawn. Null: none are."""

    hard_threshold: float | None = key(None)
    """Prompts whose mean reward is this or less are set aside as hard and no longer drawn. Null: none are."""

    easy_return_fraction: float = key(0.0, ge=0, le=1)
    """Share of the easy prompts set aside that is drawn again after a checkpoint is loaded."""

    hard_return_fraction: float = key(0.0, ge=0, le=1)
    """Share of the hard prompts set aside that is drawn again after a checkpoint is loaded."""

    online_difficulty_filtering: bool = key(False)
    """Do not train on groups whose mean reward is exactly 0 or 1: where all answers are equally good, a group baseline
    learns nothing."""
