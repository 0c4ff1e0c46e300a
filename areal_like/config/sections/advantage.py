"""Group-relative advantages in the manner of prime-rl."""

from areal_like.config.fields import config, key


@config
class AdvantageConfig:
    """Advantages relative to a prompt's group, instead of `reward_norm`: as soon as one key is set, rewards are
    measured against a baseline of their group."""

    std_norm: str | None = key(None, choices=("local", "global"))
    """Divide by the standard deviation of rewards: `local` of the group, `global` of the batch. Null: do not."""

    length_weighted_mean: bool = key(False)
    """Weight the group's rewards by answer length in the baseline, so that long answers count for more."""

    leave_one_out: bool = key(False)
    """Leave an answer's own reward out of its baseline. Needs at least two answers per prompt."""

    neg_clipped: bool = key(False)
    """Set negative advantages to 0, before any scaling: learn only from answers better than the baseline."""
