"""Where rows come from and how they are dealt out."""

from typing import Any

from areal_like.config.fields import config, key, optional_section


@config
class FakeDataConfig:
    """Random tokens in place of data: measures the trainer by itself."""

    batch_size: int = key(2, ge=1)
    """Sequences per step, over all ranks. Every data-parallel rank needs at least one."""

    seq_len: int = key(128, ge=1)
    """Tokens of each sequence."""


@config
class DatasetConfig:
    """One set of rows, and how batches are made of it."""

    path: str = key("")
    """A file of JSON lines or parquet, a folder with one (or of `save_to_disk`), a name on the Hub such as `org/name`,
    or the name of a built-in task. Files and folders are looked for beside the experiment's file, then in the working
    directory. Empty where a task or `environments` bring the rows."""

    type: str = key("rl", choices=("rl", "sft", "rw"))
    """What a row holds: a prompt to be answered (`rl`), an answer to imitate (`sft`), or a better and a worse answer
    (`rw`)."""

    subset: str | None = key(None)
    """Which of the parts that a dataset on the Hub names. Null: the one that it has by default, else `main`."""

    split: str | None = key(None)
    """Which split of a folder or of a dataset on the Hub. Null: `train` for training, the first that there is of
    `valid`, `validation` and `test` for evaluating."""

    revision: str | None = key(None)
    """Which version of a dataset on the Hub, by a name or hash that the Hub knows. Null: what the local cache has of
    `main`, else the newest. A run takes the same one to its end."""

    fields: dict[str, str] = key({})
    """What the rows call what is wanted of them: `{prompt: question, answer: solution}`. Dots lead into a row:
    `reward_model.ground_truth`."""

    as_chat: bool = key(False)
    """Take a prompt that is a text for the message of a user, and make text of it by the tokenizer's chat template.
    Prompts that are lists of messages go through it in any case."""

    loss_on: str = key("answers", choices=("answers", "all"))
    """Which tokens supervised training learns: those of the assistant and the end of its turns (`answers`), or those of
    prompts and templates too (`all`)."""

    batch_size: int = key(1, ge=1)
    """Rows per step, over all ranks. For `rl` a row is a prompt with all its `gconfig.n_samples` answers, for `rw` a
    pair."""

    shuffle: bool = key(True)
    """Deal rows in a new random order in every epoch; the order follows from the experiment's `seed`."""

    pin_memory: bool = key(False)
    """Accepted, and without effect: batches go from ordinary memory to the device. The plan says so where it is set."""

    num_workers: int = key(0, ge=0)
    """Accepted, and without effect: rows are read once, before the first step. The plan says so where it is set."""

    drop_last: bool = key(True)
    """Leave out the rows at the end of an epoch that do not fill a batch."""

    max_length: int | None = key(None, ge=1)
    """Rows with more tokens than this are left out; for `rl` the prompt counts. Null: no limit."""

    fake: FakeDataConfig | None = optional_section(FakeDataConfig)
    """Train on random tokens instead, for as many steps as are said: the trainer by itself, without servers. Null: on
    real rows."""


@config
class TaskConfig:
    """Where rows come from when a program makes them."""

    name: str | None = key(None)
    """A built-in task, or one's own as `package.module:thing` or `file.py:thing`. Null: rows come from
    `train_dataset.path`."""

    args: dict[str, Any] = key({})
    """Arguments of the task, checked against its signature. New names may be added with `+task.args.name=`."""


@config
class WorkflowConfig:
    """How one row becomes a trajectory."""

    name: str | None = key(None)
    """A built-in workflow, or one's own as `package.module:thing` or `file.py:thing`. Null: one prompt, one answer."""

    args: dict[str, Any] = key({})
    """Arguments of the workflow, checked against its signature. New names may be added with `+workflow.args.name=`."""


REWARD_MODEL = "model"
"""The built-in reward that a model gives, which is served beside the run: `reward.args.path` says which."""


@config
class RewardConfig:
    """What an answer is worth."""

    name: str | None = key(None)
    """A built-in reward, or one's own as `package.module:thing` or `file.py:thing`. Null: the one that the task
    brings. `model` asks a reward model that is served beside the run; `path` in `args` is its folder, or the run that
    trained it."""

    args: dict[str, Any] = key({})
    """Arguments of the reward, checked against its signature. New names may be added with `+reward.args.name=`."""

    timeout_s: float = key(15.0, gt=0)
    """Seconds that one reward may take. Past that it is stopped, and counted as an error, never as a reward of 0."""
