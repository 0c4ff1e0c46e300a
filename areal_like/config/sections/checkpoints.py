"""Which checkpoints are kept for good."""

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


@config
class SaverConfig(FrequencyConfig):
    """How often the weights are kept as a Hugging Face directory. The last step is always kept."""

    fileroot: str = key("${cluster.fileroot}")
    """Folder above the checkpoints. Follows `cluster.fileroot`; with another they are in
    `<fileroot>/<experiment_name>/<trial_name>/checkpoints`, where the link `checkpoints` of the run directory leads."""


@config
class RecoverConfig(FrequencyConfig):
    """How often everything needed to go on is written, and what is done with it at a start."""

    fileroot: str = key("${cluster.fileroot}")
    """Folder above what is needed to go on beside the weights, such as the optimizer's state. Follows
    `cluster.fileroot`, and is part of each checkpoint then; with another it is in
    `<fileroot>/<experiment_name>/<trial_name>/resume`, and `resume` in a checkpoint is a link."""

    mode: str = key("disabled", choices=("disabled", "auto", "fault", "resume"))
    """`auto` goes on from the newest complete checkpoint where there is one; `resume` must find one; `fault` goes on
    only after a failure within this start. With `disabled` nothing to resume from is written: a dead trainer or
    controller ends the run, and one that was stopped has its model alone."""

    retries: int = key(3, ge=0)
    """Recoveries in a row without a new complete checkpoint before the run is given up."""

    keep: int | None = key(2, ge=1)
    """How many of the newest complete checkpoints keep what is needed to resume. Null: all of them. What the saver
    keeps stays in any case."""

    skip_progress: bool = key(False)
    """When resuming, start counting at step 0 instead of taking over step, token and sample counts. The checkpoint is
    moved to `checkpoints/before-attempt-K`, since its steps are none of the new count."""

    skip_curriculum: bool = key(False)
    """When resuming, forget what the curriculum had learnt about the difficulty of prompts."""

    skip_scheduler: bool = key(False)
    """When resuming, start the learning rate schedule anew. Like the others, this is done once, where a command goes on
    from what an earlier one left, and not again when it recovers from a failure."""

    skip_dataloader: bool = key(False)
    """When resuming, read the data from its beginning instead of where the run stood."""
