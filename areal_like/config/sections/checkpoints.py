"""Sections `saver` and `recover`: which checkpoints are kept, what is written to resume, and when."""

from areal_like.config.fields import config, key, must_follow, optional_section


@config
class FrequencyConfig:
    """How often something is done. The intervals are independent: whichever is due first applies."""

    experiment_name: str = key("${experiment_name}", rules=(must_follow(),))
    """Experiment that this belongs to. Follows the experiment's own name."""

    trial_name: str = key("${trial_name}", rules=(must_follow(),))
    """Trial that this belongs to. Follows the experiment's own trial."""

    fileroot: str = key("${cluster.fileroot}")
    """Root folder of the files of this section. Follows `cluster.fileroot`."""

    freq_epochs: int | None = key(None, ge=1)
    """Interval in passes over the training data, at their end. Null: off."""

    freq_steps: int | None = key(None, ge=1)
    """Interval in training steps. Null: off."""

    freq_secs: int | None = key(None, ge=1)
    """Interval in seconds, checked after each step. Null: off."""


@config
class BestConfig:
    """The best checkpoint by a metric of evaluations."""

    metric: str = key(
        "eval/score", pattern=r"eval/.+", pattern_hint="a metric of evaluations, such as eval/gsm8k/score"
    )
    """Metric of an evaluation: `eval/score` of `valid_dataset`, `eval/NAME/score` of a benchmark, `eval/loss` of
    supervised training."""

    mode: str = key("max", choices=("max", "min"))
    """Whether the highest or the lowest value is the best."""


@config
class SaverConfig(FrequencyConfig):
    """How often the weights are kept permanently, as a Hugging Face folder. The last step is always kept."""

    best: BestConfig | None = optional_section(BestConfig)
    """Link `checkpoints/best` to the checkpoint with the best value of a metric. Each step after which that evaluation
    is due is then kept as well, and every evaluation uses one version of the weights, as with `evaluator.pin`. Null:
    off."""

    fileroot: str = key("${cluster.fileroot}")
    """Root folder of the checkpoints. Follows `cluster.fileroot`; with another one they are in
    `<fileroot>/<experiment_name>/<trial_name>/checkpoints`, and `checkpoints` in the run directory links there."""


@config
class RecoverConfig(FrequencyConfig):
    """How often the state needed to resume is written, and how it is used."""

    fileroot: str = key("${cluster.fileroot}")
    """Root folder of what is needed to resume besides the weights, such as optimizer state. Follows `cluster.fileroot`:
    it is part of each checkpoint. With another one it is in `<fileroot>/<experiment_name>/<trial_name>/resume`, and
    `resume` in a checkpoint links there."""

    mode: str = key("disabled", choices=("disabled", "auto", "fault", "resume"))
    """`auto` resumes from the newest complete checkpoint if there is one; `resume` requires one; `fault` resumes only
    after a failure within the same command. `disabled` writes no state to resume from: the death of a trainer or
    controller ends the run, and a stopped run leaves only its model."""

    grace_s: float = key(240.0, gt=0)
    """Seconds within which a run that is asked to stop (SIGTERM, SIGHUP, Slurm's SIGUSR1, Ctrl-C once) finishes its
    step and writes a checkpoint. Where there is no time for that, it abandons the step and writes the state before it,
    if that is held in memory (`hold_state`). Slurm is asked to give notice a minute earlier. A killed process that does
    not die has as long before the run fails."""

    hold_state: str = key("as_needed", choices=("as_needed", "always", "never"))
    """Whether a trainer holds a copy of its state before each step in memory, so that a step that is abandoned by a
    stop loses none before it. `as_needed`: where steps may outlast `grace_s`, or the copy takes less than 2 % of a
    step. `always` covers a step that is suddenly slow, too; it waits for a checkpoint that is still being written.
    Without a copy the newest complete checkpoint stands."""

    retries: int = key(3, ge=0)
    """Maximum number of consecutive recoveries without a new complete checkpoint; then the run fails."""

    keep: int | None = key(2, ge=1)
    """Number of the newest complete checkpoints that keep what is needed to resume. Null: all. What the saver keeps is
    never removed."""

    skip_progress: bool = key(False)
    """When resuming, start at step 0 instead of continuing the counts of steps, tokens and samples. The checkpoint is
    moved to `checkpoints/before-attempt-K`."""

    skip_curriculum: bool = key(False)
    """When resuming, discard the difficulty of prompts that the curriculum has recorded."""

    skip_scheduler: bool = key(False)
    """When resuming, restart the learning rate schedule. Like the other `skip_` keys this applies once, when a command
    resumes an earlier one, and not again when it recovers from a failure."""

    skip_dataloader: bool = key(False)
    """When resuming, read the data from its beginning, without what pools, samplers or gates remembered of its rows."""
