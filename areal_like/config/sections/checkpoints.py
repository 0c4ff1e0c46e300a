"""Which checkpoints are kept for good."""

from areal_like.config.fields import config, key
from areal_like.config.sections.frequency import FrequencyConfig


@config
class SaverConfig(FrequencyConfig):
    """How often the weights are kept as a Hugging Face directory. The last step is always kept."""

    fileroot: str = key("${cluster.fileroot}")
    """Folder above the checkpoints. Follows `cluster.fileroot`; with another they are in
    `<fileroot>/<experiment_name>/<trial_name>/checkpoints`, where the link `checkpoints` of the run directory leads."""
