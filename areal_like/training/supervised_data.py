"""Rows with answers as sequences of tokens, and which of them a step takes."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from areal_like.config.problems import ConfigError, Problem
from areal_like.data.datasets import Rows, load_datasets
from areal_like.data.named import Places
from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from areal_like.process.run import Run
from areal_like.process.seeds import derive_seed
from areal_like.training.sequences import Sequences


class Deal:
    """Rows in a new order in every epoch, the same for the same seed."""

    def __init__(self, num_rows: int, batch_size: int, shuffle: bool, drop_last: bool, seed: int) -> None:
        self._num_rows, self._batch_size, self._shuffle, self._seed = num_rows, batch_size, shuffle, seed
        self.steps_per_epoch = num_rows // batch_size if drop_last else -(-num_rows // batch_size)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Of the step after `step` completed ones."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.arange(self._num_rows)
        if self._shuffle:
            generator = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "data", epoch)))
            order = generator.permutation(self._num_rows)
        return order[place * self._batch_size : (place + 1) * self._batch_size]


class SupervisedData:
    """All rows of an experiment, tokenized."""

    def __init__(self, run: Run) -> None:
        config = run.config
        folder = model_folder(config.tokenizer_path or config.model.path, run.cwd)
        tokenizer = TextTokenizer(folder)
        found = load_datasets(config, Places(run.folder, run.cwd), tokenizer)
        chosen = config.train_dataset
        self.train = tokenized(found.train, tokenizer, chosen.max_length, "train_dataset", folder)
        self.valid: Sequences | None = None
        if found.valid is not None:
            longest = config.valid_dataset.max_length
            self.valid = tokenized(found.valid, tokenizer, longest, "valid_dataset", folder)
        self.deal = Deal(len(self.train), chosen.batch_size, chosen.shuffle, chosen.drop_last, config.seed)
        if not self.deal.steps_per_epoch:
            message = f"{chosen.batch_size} rows make a batch, but there are only {len(self.train)}; lower it"
            raise ConfigError([Problem("train_dataset.batch_size", message)])
        limits = [config.total_train_epochs * self.deal.steps_per_epoch, config.total_train_steps]
        if config.total_train_n_seqs is not None:
            limits.append(-(-config.total_train_n_seqs // chosen.batch_size))
        self.total_steps = min(limit for limit in limits if limit is not None)


def tokenized(rows: Rows, tokenizer: TextTokenizer, max_length: int | None, key: str, folder: Path) -> Sequences:
    """Prompt, answer and the token that ends it; the loss counts the last two."""
    if tokenizer.eos_id is None:
        raise ConfigError([Problem("tokenizer_path", f"{folder} names no eos_token, so that no answer could end")])
    prompts = tokenizer.encode_all([row["prompt"] for row in rows.rows])
    answers = tokenizer.encode_all([row["answer"] for row in rows.rows], special=False)
    pairs = [(prompt, [*answer, tokenizer.eos_id]) for prompt, answer in zip(prompts, answers, strict=True)]
    if max_length is not None:
        pairs = [(prompt, answer) for prompt, answer in pairs if len(prompt) + len(answer) <= max_length]
    if not pairs:
        raise ConfigError([Problem(f"{key}.max_length", f"no row of {rows.source} has so few tokens; raise it")])
    return Sequences(
        token_ids=np.array([token for pair in pairs for part in pair for token in part], dtype=np.int32),
        loss_mask=np.concatenate([np.repeat([0, 1], [len(prompt), len(answer)]) for prompt, answer in pairs]),
        lengths_N=np.array([len(prompt) + len(answer) for prompt, answer in pairs], dtype=np.int64),
    )
