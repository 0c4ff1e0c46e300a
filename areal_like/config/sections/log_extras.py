"""What trackers get besides the metrics."""

from areal_like.config.fields import config, key


@config
class LogExtras:
    """Samples and distributions for a tracker. Reinforcement learning has them; supervised training samples nothing."""

    samples: bool = key(True)
    """Send tables of prompts and answers with their rewards: of three groups of the step (that with the lowest mean
    reward, that with the highest, one at random), and of some rows of an evaluation, the same each time."""

    distributions: bool = key(True)
    """Send histograms: of rewards, advantages and lengths of answers; of an evaluation, of its scores."""

    interval: int = key(10, ge=1)
    """Send both after the first step and after every so many; of evaluations, the first and then those that are at
    least so many steps after the one before."""
