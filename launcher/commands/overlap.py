"""`overlap`: which rows of `valid_dataset` and of benchmarks are also training rows."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from areal_like.config.benchmarks import SPLIT
from areal_like.config.control_characters import escape_controls
from areal_like.config.experiment import GRPOConfig
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.data import DatasetConfig
from areal_like.data.checked_rows import ConvertedRows
from areal_like.data.data_record import temporary_record
from areal_like.data.datasets import FoundRows, find_rows
from areal_like.data.readers.dataset_source import joined
from areal_like.data.row_format import RowFormat
from areal_like.data.row_overlap import LEAST_SHARE, HeldOutRows, Overlap, compared_text, count, read_training_rows
from areal_like.data.user_code import SearchFolders
from areal_like.observe.text import columns
from areal_like.process.exit_codes import DONE
from areal_like.rollout.evaluation.answer_folders import VALID
from areal_like.rollout.evaluation.schedule import evaluation_order
from launcher.terminal import write_line

NGRAM = 8
EXAMPLES = 3
"""Of each kind and dataset."""
SHOWN_CHARACTERS = 160
PROGRESS_S = 5.0


def show_overlap(loaded: Loaded, ngram: str | None) -> int:
    """Prints a table, and examples of each kind."""
    with temporary_record() as record:
        return _show(loaded, NGRAM if ngram is None else _size(ngram), record)


def _show(loaded: Loaded, size: int, record: Path) -> int:
    config = loaded.config
    if config.train_dataset.fake is not None:
        raise ConfigError([Problem("train_dataset.fake", "makes random tokens, which are in no other rows")])
    found = together(find_rows(config, SearchFolders(loaded.folder, Path.cwd()), record))
    train, *others = found
    if not others:
        raise ConfigError([Problem("valid_dataset", "is null, and there are no benchmarks; set one of them")])
    skipped = {each.section: 0 for each in found}
    numbers = [_evaluated(config, each) for each in others]
    held_out = [HeldOutRows(_texts(*each, skipped), size) for each in zip(others, numbers, strict=True)]
    _read(_texts(train, range(len(train.raw.rows)), skipped), held_out, len(train.raw.rows))
    print(f"{len(train.raw.rows)} training rows: {train.raw.source}\n")
    table: list[tuple[str, ...]] = [("", "rows", "exact", "normalized", f"{size}-grams")]
    overlaps = [
        [row._replace(row=chosen[row.row]) for row in each.overlaps()]
        for each, chosen in zip(held_out, numbers, strict=True)
    ]
    for other, rows, known in zip(others, overlaps, held_out, strict=True):
        table.append((name_of(other), str(known.num_rows), *(_cell(n, known.num_rows) for n in count(rows).values())))
    print("\n".join(columns(table)))
    for other, rows in zip(others, overlaps, strict=True):
        for line in _examples(train, other, rows, size):
            print(escape_controls(line))
    for section, number in skipped.items():
        if number:
            print(f"{section}: {number} invalid rows were left out")
    return DONE


def together(found: Iterable[FoundRows]) -> list[FoundRows]:
    """The rows of environments as one dataset of each split."""
    splits: dict[str, list[FoundRows]] = {}
    for each in found:
        splits.setdefault(each.split, []).append(each)
    return [_joined(parts) for parts in splits.values()]


def _joined(parts: Sequence[FoundRows]) -> FoundRows:
    if len(parts) == 1:
        return parts[0]
    rows = [
        part.raw._replace(rows=ConvertedRows(part.raw.rows, RowFormat(part.dataset, part.section))) for part in parts
    ]
    split = parts[0].split
    formatted: Any = DatasetConfig
    return FoundRows(split, f"{split}_dataset", formatted(), joined(rows))


def name_of(found: FoundRows) -> str:
    return found.split.removeprefix(SPLIT) if found.split.startswith(SPLIT) else found.section


def _size(ngram: str) -> int:
    if not ngram.isdecimal() or not 1 <= int(ngram) <= 1000:
        raise ConfigError([Problem("--ngram", f"{ngram!r:.30} is not a number of words, 1 to 1000", "command line")])
    return int(ngram)


def _evaluated(config: Any, found: FoundRows) -> list[int]:
    """The rows that an evaluation takes, in order. Those that are too long, in whose place it takes others, count."""
    num_rows = len(found.raw.rows)
    if not isinstance(config, GRPOConfig):
        return list(range(num_rows))
    name = "" if found.split == VALID else name_of(found)
    own = next((each.num_examples for each in config.evaluator.benchmarks if each.name == name), None)
    limit = config.evaluator.num_examples if own is None else own
    return sorted(evaluation_order(config.seed, name, num_rows)[: None if limit < 0 else limit].tolist())


def _texts(found: FoundRows, numbers: Sequence[int], skipped: dict[str, int]) -> Iterator[str]:
    """A row that is invalid, which a run would not use either, is empty."""
    row_format = RowFormat(found.dataset, found.section)
    for number in numbers:
        try:
            text = compared_text(row_format(found.raw.rows[number]), found.dataset.type)
        except (ValueError, TypeError, ConfigError):  # the last one: a line that is not JSON
            skipped[found.section] += 1
            text = ""
        yield text


def _read(texts: Iterator[str], held_out: Sequence[HeldOutRows], num_rows: int) -> None:
    shown = time.monotonic()
    for number in read_training_rows(texts, held_out):
        if time.monotonic() - shown > PROGRESS_S:
            shown = time.monotonic()
            write_line(f"{number} of {num_rows} training rows compared", sys.stderr)


def _cell(number: int, num_rows: int) -> str:
    return f"{number} ({number / num_rows:.1%})" if number else "0"


def _examples(train: FoundRows, other: FoundRows, rows: Sequence[Overlap], size: int) -> Iterator[str]:
    kinds: dict[str, list[tuple[Overlap, int | None]]] = {"exact": [], "normalized": [], "n-grams": []}
    for each in rows:
        if each.exact is not None:
            kinds["exact"].append((each, each.exact))
        elif each.normalized is not None:
            kinds["normalized"].append((each, each.normalized))
        elif each.share >= LEAST_SHARE:
            kinds["n-grams"].append((each, each.shares_with))
    words = {"exact": "is", "normalized": "is, but for its form,"}
    for kind, examples in kinds.items():
        for each, row in examples[:EXAMPLES]:
            assert row is not None
            relation = words.get(kind, f"shares {each.share:.0%} of its {size}-grams with training rows, such as")
            yield f"\n{other.section}: {other.raw.place(each.row)} {relation} {train.raw.place(row)}"
            yield f"    {_shown(other, each.row)}"
            if kind != "exact":
                yield f"    {_shown(train, row)}"
        if len(examples) > EXAMPLES:
            yield f"    and {len(examples) - EXAMPLES} more"


def _shown(found: FoundRows, number: int) -> str:
    row: Any = found.raw.rows[number]
    text = compared_text(RowFormat(found.dataset, found.section)(row), found.dataset.type)
    return f"{text[:SHOWN_CHARACTERS]!r}{' ...' if len(text) > SHOWN_CHARACTERS else ''}"
