"""Where rows come from and how they are dealt out."""

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
    """A file or folder, a name on the hub, or the name of a built-in task. Empty where `environments` bring the
    rows."""

    type: str = key("rl", choices=("rl", "sft", "rw"))
    """What a row holds: a prompt to be answered (`rl`), a text to imitate (`sft`), or a better and a worse answer
    (`rw`)."""

    batch_size: int = key(1, ge=1)
    """Rows per step, over all ranks. For `rl` a row is a prompt with all its `gconfig.n_samples` answers, for `rw` a
    pair."""

    shuffle: bool = key(True)
    """Deal rows in a new random order in every epoch; the order follows from the experiment's `seed`."""

    pin_memory: bool = key(False)
    """Put batches into page-locked memory, from which copies to a GPU are faster. Nothing to gain on a CPU."""

    num_workers: int = key(0, ge=0)
    """Processes that read and tokenize rows ahead of need. 0: no extra process."""

    drop_last: bool = key(True)
    """Leave out the rows at the end of an epoch that do not fill a batch."""

    max_length: int | None = key(None, ge=1)
    """Rows with more tokens than this are left out; for `rl` the prompt counts. Null: no limit."""

    fake: FakeDataConfig | None = optional_section(FakeDataConfig)
    """Train on random tokens instead. Null: on real rows."""
