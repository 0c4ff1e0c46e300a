"""Data of supervised training: rows become sequences while the step before them is computed."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from areal_like.config.problems import ConfigError, Problem
from areal_like.data.batch_sampler import BatchSampler
from areal_like.data.checked_rows import CheckedRows
from areal_like.data.data_record import RECORD
from areal_like.data.datasets import load_datasets
from areal_like.data.row_order import KeptRows
from areal_like.data.row_table import other_rows_message
from areal_like.data.tokenized_rows import TokenizedRows
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.process import pulse
from areal_like.process.errors import Failure, FinalFailure
from areal_like.process.run import Run
from areal_like.training.fake_data import FakeTokenDataset, fake_valid
from areal_like.training.preference_pairs import scoring_sequences
from areal_like.training.sequences import Sequences
from areal_like.training.supervised_batch import DataLength, SupervisedBatch

T = TypeVar("T")


class TokenDataset:
    """The rows of a dataset as sequences."""

    def __init__(self, rows: CheckedRows, is_pairs: bool, pin_memory: bool = True) -> None:
        self.tokenized, self._is_pairs, self._pin_memory = TokenizedRows(rows), is_pairs, pin_memory

    def __len__(self) -> int:
        return len(self.tokenized.table)

    def take(self, rows_R: NDArray[np.int64]) -> Sequences:
        """Of a pair two sequences, the chosen one first. The rows were inspected."""
        tokens = self.tokenized.take(rows_R.tolist())
        sequences = (
            scoring_sequences(tokens)
            if self._is_pairs
            else Sequences(tokens.token_ids, tokens.counts, tokens.lengths_N)
        )
        return replace(sequences, pin_memory=self._pin_memory)

    def batches(self, batch_size: int, most: int) -> Iterator[Sequences]:
        """The first `most` rows, unless -1, in their order."""
        rows, count = KeptRows(np.arange(len(self)), self.tokenized.table), 0
        while most < 0 or count < most:
            start, count = count, count + batch_size if most < 0 else min(most, count + batch_size)
            while unknown := rows.unknown(count):
                self.tokenized.inspect(unknown)
            if not rows.num_kept:
                raise FinalFailure(self.too_few(1))
            taken = rows.between(start, count)
            if not len(taken):
                return
            yield self.take(taken)

    def too_few(self, least: int) -> str:
        """The message where fewer rows are left."""
        section, table = self.tokenized.rows.section, self.tokenized.table
        return (
            f"{section}.max_length: {table.num_too_long} of {len(table)} rows have more tokens, or are invalid; "
            f"{len(table) - table.num_too_long} are left, and {least} are needed; raise it"
        )


class SupervisedData:
    """Training and evaluation data of a supervised run. One thread reads them, ahead of the steps."""

    PART, TABLE = "data.json", "rows.safetensors"
    FORMAT = 2

    def __init__(self, run: Run) -> None:
        self._config = config = run.config
        train_dataset = config.train_dataset
        folder = model_folder(config.tokenizer_path or config.model.path, run.cwd)
        tokenizer = TextTokenizer(folder, config.chat_template_args)
        places = SearchFolders(run.folder, run.cwd)
        datasets = load_datasets(config, places, tokenizer, run.directory / RECORD)
        is_pairs = train_dataset.type == "rw"
        if not is_pairs and tokenizer.eos_id is None and not datasets.train.has_messages:
            raise ConfigError([Problem("tokenizer_path", f"{folder} has no eos_token, so that no answer could end")])
        self._sequences_per_step = train_dataset.batch_size * (2 if is_pairs else 1)
        self._thread = ThreadPoolExecutor(1, "data")
        self.train = TokenDataset(datasets.train, is_pairs, train_dataset.pin_memory)
        self._table = self.train.tokenized.table
        self.valid: TokenDataset | FakeTokenDataset | None = fake_valid(config, tokenizer.size)
        if datasets.valid is not None:
            self.valid = TokenDataset(datasets.valid, is_pairs, config.valid_dataset.pin_memory)
        self._digest = datasets.train.digest
        self.batch_sampler = BatchSampler(
            self._table, train_dataset.batch_size, train_dataset.shuffle, train_dataset.drop_last, config.seed
        )
        self._order = [config.seed, train_dataset.shuffle, train_dataset.drop_last, train_dataset.batch_size]
        """What decides the order of the rows and the batches of an epoch."""
        self.length = self._length()

    def __str__(self) -> str:
        return f"{self.length.rows} rows"

    def evaluation(self) -> Iterator[Sequences]:
        assert self.valid is not None, "there is nothing to evaluate on"
        config = self._config
        return self._ahead(self.valid.batches(config.valid_dataset.batch_size, config.evaluator.num_examples))

    def batches(self, step: int) -> Iterator[SupervisedBatch]:
        """From the step after `step` completed ones to the last."""
        return self._ahead(self._batches(step))

    def epochs(self, step: int, length: DataLength) -> float:
        """Epochs of data that were used after `step` completed steps."""
        return self.batch_sampler.first_epoch + self.batch_sampler.drawn(step) / length.steps_per_epoch

    def state(self, step: int) -> dict[str, bytes]:
        """Its files in a checkpoint after `step` completed steps."""
        return _result(self._thread.submit(self._state, step))

    def resume(self, step: int, checkpoint: Path, starts_over: bool) -> None:
        """Continues where the checkpoint was; `starts_over` is `recover.skip_dataloader`. If the batches of an
        epoch are others, continues with the next epoch."""
        sampler = self.batch_sampler
        if starts_over:
            sampler.begin(step, 0, 0)
            return
        state: dict[str, Any] = json.loads((checkpoint / "resume" / self.PART).read_bytes())
        if state.get("format") != self.FORMAT:
            raise Failure(
                f"resume: {checkpoint} was written by another version, which described its data in another way; resume "
                "with that version, or set recover.skip_dataloader=true to start the data over"
            )
        if state["digest"] != self._digest:
            raise ConfigError([Problem("train_dataset", other_rows_message(state["digest"], self._digest))])
        table = load((checkpoint / "resume" / self.TABLE).read_bytes())
        self._table.restore([table["states"].tobytes(), table["hashes"].tobytes()])
        sampler.num_kept = state["num_kept"]
        self.length = self._length()
        first_epoch, drawn = state["first_epoch"], state["drawn"]
        if state["steps_per_epoch"] != sampler.steps_per_epoch or state.get("order", self._order) != self._order:
            first_epoch, drawn = first_epoch + -(-drawn // state["steps_per_epoch"]), 0
        sampler.begin(step, first_epoch, drawn)

    def _state(self, step: int) -> dict[str, bytes]:
        sampler = self.batch_sampler
        state = {
            "format": self.FORMAT,
            "digest": self._digest,
            "first_epoch": sampler.first_epoch,
            "drawn": sampler.drawn(step),
            "steps_per_epoch": sampler.steps_per_epoch,
            "order": self._order,
            "num_kept": sampler.num_kept,
        }
        states, hashes = (np.frombuffer(blob, np.uint8) for blob in self._table.blobs())
        return {self.PART: json.dumps(state).encode() + b"\n", self.TABLE: save({"states": states, "hashes": hashes})}

    def _batches(self, step: int) -> Iterator[SupervisedBatch]:
        while step < self._length().total_steps:
            while unknown := self.batch_sampler.unknown(step):
                self.train.tokenized.inspect(unknown)
            length = self._length()
            rows_R = self.batch_sampler.rows(step)
            digest = self.train.tokenized.digest(rows_R.tolist())
            yield SupervisedBatch(self.train.take(rows_R), digest, length)
            step += 1

    def _length(self) -> DataLength:
        config, sampler = self._config, self.batch_sampler
        steps = sampler.steps_per_epoch
        if not steps:
            raise FinalFailure(self.train.too_few(config.train_dataset.batch_size))
        limits = [config.total_train_epochs * steps, config.total_train_steps]
        if config.total_train_n_seqs is not None:
            limits.append(-(-config.total_train_n_seqs // self._sequences_per_step))
        rows = len(self._table) if sampler.num_kept is None else sampler.num_kept
        return DataLength(rows, steps, min(limit for limit in limits if limit is not None))

    def _ahead(self, items: Iterator[T]) -> Iterator[T]:
        """The thread makes the next item while the caller uses one."""
        made = self._thread.submit(next, items, None)
        while (item := _result(made)) is not None:
            made = self._thread.submit(next, items, None)
            yield item


def _result(made: Future[T]) -> T:
    """What the thread of the data makes. The watchdog sees the thread that waits: as long as the process reads or
    tokenizes rows, however many are left out, it makes progress."""
    with pulse.phase(pulse.LOADING):
        return made.result()
