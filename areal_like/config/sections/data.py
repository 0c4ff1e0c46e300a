"""Sections `train_dataset`, `task`, `workflow` and `reward`: where rows come from, and what a run makes of them."""

from typing import Any

from areal_like.config.fields import config, key, no_effect, optional_section, refused

ANSWER_SOURCES = ("boxed", "hashes", "index", "letter", "text")
ROW_LISTS = ("evaluator.benchmarks", "environments.train")
"""Lists whose items have the keys of a RowSourceConfig."""
ONLY_SUPERVISED = no_effect("only supervised training on given answers uses it", kinds=("grpo", "reward_model"))


@config
class FakeDataConfig:
    """Random tokens instead of data, to measure the trainer without servers."""

    batch_size: int = key(2, ge=1)
    """Sequences per step, over all ranks. Every data-parallel rank needs at least one."""

    seq_len: int = key(128, ge=1)
    """Number of tokens of each sequence."""


@config
class RowSourceConfig:
    """Where rows come from, and how one is read."""

    path: str | list[str] = key("")
    """A file of JSON lines or parquet, a folder with one (or of `save_to_disk`), a name on the Hub such as `org/name`,
    or the name of a built-in task; or a list of files, folders and names, whose rows follow one another. Files and
    folders are searched beside the experiment's file, then in the working directory. Empty if the rows come from a task
    or `environments`."""

    known: str | None = key(None)
    """The known dataset whose columns, prompt and reward these rows have: {known_datasets}, or one of `known_datasets`.
    Null: the one that has a part of `path` as its name, such as `gsm8k` for `data/gsm8k/train.jsonl`; of several yours,
    then the one with the longest name. `none`: no known one."""

    subset: str | None = key(None)
    """Subset (configuration name) of a dataset on the Hub. Null: its default, else `main`."""

    split: str | None = key(None)
    """Split of a folder or of a dataset on the Hub. Null: `train` for training, the first existing one of `valid`,
    `validation` and `test` for evaluation."""

    revision: str | list[str] | None = key(None)
    """Revision of a dataset on the Hub: a name or a hash; of several paths one for all, or a list with one for each,
    empty for a file or folder. Null: the local cache's version of `main`, else the newest. It is fixed for the whole
    run."""

    fields: dict[str, str] = key({})
    """Names of the columns: `{prompt: question, answer: solution}`. A dotted name reads a nested value:
    `reward_model.ground_truth`."""

    require: dict[str, str] = key({})
    """Values that columns have in every row that has them: `{task: math}`. A row with another value is an error, as its
    answers would be judged by the wrong reward. Columns have the names that `fields` gives them. Empty: any."""

    as_chat: bool = key(False)
    """Treat a prompt that is a text as a user message, and apply the tokenizer's chat template. The template is always
    applied to prompts that are lists of messages."""

    prompt_template: str | None = key(None)
    """The prompt as a text with names of columns in braces: `{question}`, or `{meta.level}` for a nested value. Columns
    have the names that `fields` gives them; `{{` and `}}` are braces. Null: the column `prompt`, unchanged."""

    system_prompt: str | None = key(None)
    """A system message before each prompt that has none; a prompt that is a text becomes a user message. Null: none."""

    remove_text: list[str] = key([])
    """Texts that are removed from prompts that are texts, such as the turn markers of another model. Empty: none."""

    multiple_choice: str | None = key(None)
    """Column with the choices of a question, a list of texts. They follow the prompt (the last message of the user), or
    replace `{choices}` in `prompt_template`, each on a line with its letter, and `answer` becomes the letter of the
    right one. Null: rows have no choices."""

    answer_from: str | None = key(None, choices=ANSWER_SOURCES)
    """How `answer` is found in its column. `boxed`: in the last `\\boxed{}`. `hashes`: after the last `####`. With
    `multiple_choice` it is the `index` (from 0), the `letter` (or the number from 1) or the `text` of the right choice.
    Null: the whole value; with `multiple_choice` a number is an index, a single letter a letter, and any other text a
    choice or its number from 1."""

    max_length: int | None = key(None, ge=1)
    """Rows with more tokens than this are dropped; for `rl` the tokens of the prompt are counted, shortly before the
    row is used. Null: no limit."""


@config
class DatasetConfig(RowSourceConfig):
    """A dataset, and how batches are made from it."""

    type: str = key("rl", choices=("rl", "sft", "rw"))
    """What a row holds: a prompt to be answered (`rl`), an answer to imitate (`sft`), or a better and a worse answer
    (`rw`)."""

    loss_on: str = key("answers", choices=("answers", "all"), rules=(ONLY_SUPERVISED,))
    """Tokens in the loss of supervised training: those of the assistant and the end of its turns (`answers`), or also
    those of prompts and templates (`all`)."""

    batch_size: int = key(1, ge=1)
    """Rows per step, over all ranks. For `rl` a row is a prompt with all its `gconfig.n_samples` answers, for `rw` a
    pair."""

    shuffle: bool = key(True)
    """Shuffle the rows anew in every epoch; the order is derived from the experiment's `seed`."""

    pin_memory: bool = key(True)
    """Copy the trainer's batches to a CUDA device from pinned memory: other copies may wait for what it computes. No
    effect without one."""

    num_workers: int = key(0, ge=0, rules=(no_effect("the processes of the run read the rows themselves"),))
    """Accepted so that files of AReaL load. Rows are tokenized in threads."""

    drop_last: bool = key(True)
    """Drop the rows at the end of an epoch that do not fill a batch."""

    fake: FakeDataConfig | None = optional_section(
        FakeDataConfig,
        refused(
            "random tokens have no preference; set it to null (sft.yaml measures the same trainer)",
            kinds=("reward_model",),
        ),
    )
    """Train on random tokens instead of rows, without servers, for the number of steps that is set. Null: off."""


def paths_of(path: str | list[str]) -> tuple[str, ...]:
    """The paths of a dataset; none if it is empty."""
    return tuple(each for each in ([path] if isinstance(path, str) else path) if each)


def revisions_of(data: RowSourceConfig) -> tuple[str | None, ...]:
    """One for each path of a dataset."""
    revision, paths = data.revision, paths_of(data.path)
    if isinstance(revision, list):
        return tuple(each or None for each in revision)
    return (revision,) * len(paths)


@config
class TaskConfig:
    """A program that generates rows."""

    name: str | None = key(None)
    """A built-in task ({tasks}), or your own as `package.module:thing` or `file.py:thing`. Null: rows come from
    `train_dataset.path`."""

    args: dict[str, Any] = key({})
    """Arguments of the task, checked against its signature. Add one with `+task.args.name=`."""


@config
class WorkflowSourceConfig:
    """Which workflow makes a trajectory of a row."""

    name: str | None = key(None)
    """A built-in workflow ({workflows}), or your own as `package.module:thing` or `file.py:thing`. Null: `single_turn`,
    one prompt and one answer."""

    args: dict[str, Any] = key({})
    """Arguments of the workflow, checked against its signature. Add one with `+workflow.args.name=`."""


@config
class WorkflowConfig(WorkflowSourceConfig):
    """How one row becomes a trajectory."""

    block_timeout_s: float | None = key(60.0, gt=0)
    """A workflow that does not let the event loop of its worker run for so many seconds, as it computes or waits
    without `await`, is named in the log with its stack, and the worker is replaced. Null: never."""
