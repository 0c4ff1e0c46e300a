"""Data of supervised training: tokenized rows, and which of them are in each batch."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_like.config.problems import ConfigError, Problem
from areal_like.data.data_record import RECORD
from areal_like.data.datasets import CheckedRows, load_datasets
from areal_like.data.row_tokenizer import TokenSequences, sequences_of
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.process.errors import Failure
from areal_like.process.run import Run
from areal_like.process.seeds import derive_seed
from areal_like.training.fake_data import FakeTokenDataset, fake_valid
from areal_like.training.preference_pairs import scoring_sequences
from areal_like.training.sequences import Sequences


class BatchSampler:
    """Shuffles the rows in every epoch, the same way for the same seed."""

    def __init__(self, num_rows: int, batch_size: int, shuffle: bool, drop_last: bool, seed: int) -> None:
        self._num_rows, self._batch_size, self._shuffle, self._seed = num_rows, batch_size, shuffle, seed
        self.steps_per_epoch = num_rows // batch_size if drop_last else -(-num_rows // batch_size)
        self._offset = 0
        self._epoch, self._order = -1, np.arange(num_rows)

    def begin(self, step: int, batches: int) -> None:
        """Sets how many batches count as drawn after `step` completed steps; by default one per step."""
        self._offset = batches - step

    def batches_drawn(self, step: int) -> int:
        """After `step` completed steps."""
        return step + self._offset

    def rows(self, step: int) -> NDArray[np.int64]:
        """Of the step after `step` completed ones."""
        epoch, index = divmod(self.batches_drawn(step), self.steps_per_epoch)
        if self._shuffle and epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "data", epoch)))
            self._epoch, self._order = epoch, generator.permutation(self._num_rows)
        return self._order[index * self._batch_size : (index + 1) * self._batch_size]


class TokenDataset:
    """All rows of a dataset as tokens; rows become sequences when a step takes them."""

    def __init__(self, tokens: TokenSequences, is_pairs: bool, pin_memory: bool = True) -> None:
        self._tokens, self._is_pairs, self._per_row = tokens, is_pairs, 2 if is_pairs else 1
        self._pin_memory = pin_memory

    def __len__(self) -> int:
        return len(self._tokens) // self._per_row

    def take(self, rows_R: NDArray[np.int64]) -> Sequences:
        """Of a pair two sequences, the chosen one first."""
        tokens = self._tokens.take(sequences_of(rows_R, self._per_row))
        sequences = (
            scoring_sequences(tokens)
            if self._is_pairs
            else Sequences(tokens.token_ids, tokens.counts, tokens.lengths_N)
        )
        return replace(sequences, pin_memory=self._pin_memory)


class SupervisedData:
    """Training and evaluation data of a supervised run. `state` is its part of a checkpoint."""

    PART = "data.json"

    def __init__(self, run: Run) -> None:
        config, train_dataset = run.config, run.config.train_dataset
        folder = model_folder(config.tokenizer_path or config.model.path, run.cwd)
        tokenizer = TextTokenizer(folder, config.chat_template_args)
        places = SearchFolders(run.folder, run.cwd)
        datasets = load_datasets(config, places, tokenizer, run.directory / RECORD, with_tokens=True)
        is_pairs = train_dataset.type == "rw"
        if not is_pairs and tokenizer.eos_id is None and not datasets.train.has_messages:
            raise ConfigError([Problem("tokenizer_path", f"{folder} has no eos_token, so that no answer could end")])
        self.train = _token_dataset("train_dataset", datasets.train, is_pairs, train_dataset.pin_memory)
        self.valid: TokenDataset | FakeTokenDataset | None = fake_valid(config, tokenizer.size)
        if datasets.valid is not None:
            pins_valid = config.valid_dataset.pin_memory
            self.valid = _token_dataset("valid_dataset", datasets.valid, is_pairs, pins_valid)
        self._digest = datasets.train.digest
        self.batch_sampler = BatchSampler(
            len(self.train), train_dataset.batch_size, train_dataset.shuffle, train_dataset.drop_last, config.seed
        )
        sequences = train_dataset.batch_size * (2 if is_pairs else 1)
        limits = [config.total_train_epochs * self.batch_sampler.steps_per_epoch, config.total_train_steps]
        if config.total_train_n_seqs is not None:
            limits.append(-(-config.total_train_n_seqs // sequences))
        self.total_steps = min(limit for limit in limits if limit is not None)

    def __str__(self) -> str:
        return f"{len(self.train)} rows"

    def state(self, step: int) -> bytes:
        """After `step` completed steps."""
        state = {
            "digest": self._digest,
            "dealt": self.batch_sampler.batches_drawn(step),
            "steps_per_epoch": self.batch_sampler.steps_per_epoch,
        }
        return json.dumps(state).encode() + b"\n"

    def resume(self, step: int, checkpoint: Path, starts_over: bool) -> None:
        """Continues where the checkpoint was; `starts_over` is `recover.skip_dataloader`. If the number of batches per
        epoch has changed, continues with the next epoch."""
        if starts_over:
            self.batch_sampler.begin(step, 0)
            return
        state: dict[str, Any] = json.loads((checkpoint / "resume" / self.PART).read_bytes())
        if state["digest"] != self._digest:
            raise Failure(
                f"train_dataset: the data differs from that at the checkpoint (its digest was {state['digest']}, now "
                f"it is {self._digest}); resume with the same data, or set recover.skip_dataloader=true to start over"
            )
        batches_drawn: int = state["dealt"]
        if state["steps_per_epoch"] != self.batch_sampler.steps_per_epoch:
            batches_drawn = -(-batches_drawn // state["steps_per_epoch"]) * self.batch_sampler.steps_per_epoch
        self.batch_sampler.begin(step, batches_drawn)


def _token_dataset(section: str, rows: CheckedRows, is_pairs: bool, pin_memory: bool) -> TokenDataset:
    assert rows.tokens is not None, "loaded with_tokens"
    if is_pairs and not rows.tokens.lengths_N.all():
        place = rows.place(int(np.flatnonzero(rows.tokens.lengths_N == 0)[0]) // 2)
        message = f"{place} has a text without tokens, which cannot be scored; remove it"
        raise ConfigError([Problem(f"{section}.path", message)])
    return TokenDataset(rows.tokens, is_pairs, pin_memory)
