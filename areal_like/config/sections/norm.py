"""Centring and scaling of rewards or advantages."""

from areal_like.config.fields import config, key


@config
class NormConfig:
    """Subtract a mean and divide by a standard deviation, over the batch or over each prompt's group."""

    mean_level: str | None = key("batch", choices=("batch", "group"))
    """What the mean is taken over. Null subtracts nothing."""

    mean_leave1out: bool = key(False)
    """Leave an element itself out of the mean that is subtracted from it, as RLOO does."""

    std_level: str | None = key("batch", choices=("batch", "group"))
    """What the standard deviation is taken over. Null only centres, as Dr. GRPO does."""

    std_unbiased: bool = key(True)
    """Divide squared deviations by n-1 instead of n."""

    eps: float = key(1e-5, ge=0)
    """Added to the standard deviation, so that a constant group does not divide by zero."""

    group_size: int = key("${gconfig.n_samples}", ge=1)
    """Sequences per prompt for the level `group`. Follows `gconfig.n_samples`."""
