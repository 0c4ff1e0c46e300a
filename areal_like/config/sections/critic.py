"""The value model of PPO."""

from areal_like.config.fields import config, key
from areal_like.config.sections.train_engine import TrainEngineConfig


@config
class PPOCriticConfig(TrainEngineConfig):
    """A model that predicts, at every token, the reward still to come."""

    ppo_n_minibatches: int = key(4, ge=1)
    """Optimizer steps per batch: it is cut into so many parts of about equal size in tokens."""

    eps_clip: float = key(0.5, gt=0)
    """How far a new value may be from the old one before it brings no further gain."""

    mask_no_eos_with_zero: bool = key(False)
    """Whether cut-off answers are left without their reward. Follows the actor's key of the same name."""
