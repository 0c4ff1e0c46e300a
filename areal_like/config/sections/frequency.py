"""When something that recurs during training is done; shared by the saver, the evaluator and recovery."""

from areal_like.config.fields import config, key


@config
class FrequencyConfig:
    """How often; each clock runs by itself, and whichever strikes first counts."""

    experiment_name: str = key("${experiment_name}")
    """Experiment that this belongs to. Follows the experiment's own name; another value is refused."""

    trial_name: str = key("${trial_name}")
    """Trial that this belongs to. Follows the experiment's own trial; another value is refused."""

    fileroot: str = key("${cluster.fileroot}")
    """Folder above what this writes. Follows `cluster.fileroot`."""

    freq_epochs: int | None = key(None, ge=1)
    """Every so many passes over the training data, at their end. Null: this clock is off."""

    freq_steps: int | None = key(None, ge=1)
    """Every so many training steps. Null: this clock is off."""

    freq_secs: int | None = key(None, ge=1)
    """When so many seconds have passed since the last time, looked at after each step. Null: this clock is off."""
