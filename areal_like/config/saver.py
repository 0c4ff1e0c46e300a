"""Which checkpoints are kept for good."""

from areal_like.config.fields import config
from areal_like.config.frequency import FrequencyConfig


@config
class SaverConfig(FrequencyConfig):
    """How often the weights are kept as a Hugging Face directory. The last step is always kept."""
