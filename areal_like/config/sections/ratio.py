"""The importance ratio between the policy in training and the one that sampled."""

from areal_like.config.fields import config, key


@config
class RatioConfig:
    """How the importance ratio of the loss is formed, and which tokens it takes out of the loss."""

    level: str = key("token", choices=("token", "sequence"))
    """One ratio per token, or one per sequence that all its tokens share (GSPO, together with `length_norm`)."""

    length_norm: bool = key(False)
    """With level `sequence`: take the geometric mean over the tokens instead of their product."""

    mask_high: float | None = key(None, gt=0)
    """Tokens with a higher ratio do not count in the loss. Null: no limit; 8 is what prime-rl takes."""

    mask_low: float | None = key(None, ge=0)
    """Tokens with a lower ratio do not count in the loss. Null: no limit; 0.125 is what prime-rl takes."""

    sequence_mask_low: float = key(0.0, ge=0)
    """A sequence with any token whose ratio is lower than this does not count at all. 0: off."""
