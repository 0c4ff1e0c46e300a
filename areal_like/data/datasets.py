"""The rows of a run: of its task, or of files of JSON lines; checked once, with a hash of each."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import orjson
import xxhash

from areal_like.data.lines import find_file, read_lines
from areal_like.data.named import Places, problem, where
from areal_like.data.tasks import BUILT_IN, TEST, TRAIN, Row, Task, make_task
from areal_like.data.tokenizer import TextTokenizer

log = logging.getLogger(__name__)

WANTED = {"rl": ("prompt",), "sft": ("prompt", "answer"), "rw": ("prompt", "chosen", "rejected")}
"""Type of a dataset -> the texts that each of its rows has."""

TASK_SPLIT = {"train": TRAIN, "valid": TEST}
"""Which split of a task the two datasets of an experiment are."""


@dataclass(frozen=True)
class Rows:
    """Rows in a fixed order; whoever has the same digest has the same rows."""

    rows: Sequence[Row]
    row_hashes: list[str]
    source: str
    """Where they come from, in words."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def digest(self) -> str:
        return xxhash.xxh3_64_hexdigest("".join(self.row_hashes).encode())


@dataclass(frozen=True)
class Datasets:
    train: Rows
    valid: Rows | None
    task: Task | None

    def of(self, split: str) -> Rows:
        rows = {"train": self.train, "valid": self.valid}[split]
        if rows is None:
            raise ValueError("valid_dataset: this run has none")
        return rows


def task_name(config: Any) -> str | None:
    """A built-in task may also be named as the place that rows come from."""
    path: str = config.train_dataset.path
    said: str | None = config.task.name
    return path if said is None and path in BUILT_IN else said


def load_datasets(config: Any, places: Places, tokenizer: TextTokenizer) -> Datasets:
    """Both datasets of an experiment. The tokenizer is asked only where `max_length` leaves rows out."""
    name = task_name(config)
    task = None if name is None else make_task(name, dict(config.task.args), places)

    def load(split: str, dataset: Any) -> Rows:
        return _checked(f"{split}_dataset", dataset, _found(split, dataset.path, name, task, places), tokenizer)

    train = load("train", config.train_dataset)
    valid = None if config.valid_dataset is None else load("valid", config.valid_dataset)
    size = config.train_dataset.batch_size
    if config.train_dataset.drop_last and len(train) < size:
        few = f"{size} rows make a batch, but {train.source} has only {len(train)}"
        raise problem("train_dataset.batch_size", f"{few}: lower it, or set train_dataset.drop_last=false")
    return Datasets(train, valid, task)


class _Found(NamedTuple):
    """Rows before any check."""

    rows: Sequence[Any]
    source: str
    place: Callable[[int], str]
    """Where a row stands, for who has to mend it."""


def _found(split: str, path: str, name: str | None, task: Task | None, places: Places) -> _Found:
    key = f"{split}_dataset.path"
    if task is not None and path in ("", name):
        source = f"the {TASK_SPLIT[split]} split of task {name}"
        return _Found(_rows_of(task, split, name or ""), source, lambda number: f"row {number} of {source}")
    if not path:
        raise problem(key, "no rows are named: give a file of JSON lines here, or a task in task.name")
    file = find_file(key, path, split, places, BUILT_IN)
    rows, lines = read_lines(key, file)
    return _Found(rows, str(file), lambda number: f"{file}:{lines[number]}")


def _rows_of(task: Task, split: str, name: str) -> Sequence[Any]:
    asked = TASK_SPLIT[split]
    try:
        rows: Any = task.rows(asked)
    except BaseException as fault:
        if isinstance(fault, KeyboardInterrupt):
            raise
        raise problem("task.name", f"rows({asked!r}) of {name} failed: {where(fault)}", fault) from fault
    if not isinstance(rows, Sequence):
        said = f"rows({asked!r}) of {name} returned {type(rows).__name__}"
        raise problem("task.name", f"{said}; return a list, or another sequence with a length")
    return rows


def _checked(key: str, dataset: Any, found: _Found, tokenizer: TextTokenizer) -> Rows:
    wanted = WANTED[dataset.type]
    hashes = [_hash(f"{key}.path", found.place, number, row, wanted) for number, row in enumerate(found.rows)]
    if dataset.max_length is None:
        rows = Rows(found.rows, hashes, found.source)
    else:
        try:
            lengths = _lengths(found.rows, dataset.type, tokenizer)
        except ValueError as fault:
            raise problem(f"{key}.path", f"{found.source}: {fault}", fault) from fault
        kept = [number for number, length in enumerate(lengths) if length <= dataset.max_length]
        if len(kept) < len(lengths):
            said = f"{len(lengths) - len(kept)} of {len(lengths)} rows of {found.source} are left out"
            log.info("%s: they have more than %d tokens (%s.max_length)", said, dataset.max_length, key)
        rows = Rows([found.rows[number] for number in kept], [hashes[number] for number in kept], found.source)
    if not len(rows):
        left_out = f" of at most {dataset.max_length} tokens ({key}.max_length)" if dataset.max_length else ""
        raise problem(f"{key}.path", f"{found.source} has no rows{left_out}")
    return rows


def _lengths(rows: Sequence[Row], kind: str, tokenizer: TextTokenizer) -> list[int]:
    """Tokens of each row: of the prompt alone for `rl`, else with its longest answer and the token that ends it."""
    prompts = tokenizer.lengths([row["prompt"] for row in rows])
    answers = [tokenizer.lengths([row[name] for row in rows], special=False) for name in WANTED[kind][1:]]
    if not answers:
        return prompts
    return [prompt + max(each) + 1 for prompt, *each in zip(prompts, *answers, strict=True)]


def _hash(key: str, place: Callable[[int], str], number: int, row: Any, wanted: Sequence[str]) -> str:
    """Of the row as JSON; a row that is not as it must be is an error."""
    if not isinstance(row, dict):
        raise problem(key, f"{place(number)} is {type(row).__name__}; a row is a dict with {' and '.join(wanted)}")
    for name in wanted:
        if not isinstance(row.get(name), str):
            has = (
                f"is {row[name]!r:.60}, not a text" if name in row else f"is missing; it has {', '.join(map(str, row))}"
            )
            raise problem(key, f"{place(number)}: {name!r} {has}")
    try:
        text = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
    except TypeError as fault:
        raise problem(key, f"{place(number)} holds what JSON cannot: {fault}", fault) from fault
    return xxhash.xxh3_64_hexdigest(text)
