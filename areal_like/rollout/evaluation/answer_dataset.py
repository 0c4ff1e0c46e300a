"""The answers of evaluations as a dataset that `datasets.load_dataset` reads and the Hub shows, beside the JSON lines.

A folder with a parquet file for each evaluation, and a `README.md` that makes what was evaluated a subset, and each
step a split of it: `load_dataset("runs/sums/r0001/evaluations/dataset", "valid", split="step_000020")`.
"""

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from areal_like.process import atomic_file

DATASET, CARD = "dataset", "README.md"
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


def write_answers(
    folder: Path,
    step: str,
    name: str,
    lines: Sequence[dict[str, Any]],
    require: Callable[[], None] = lambda: None,
) -> None:
    """`lines` are those of the file of JSON lines. `require` is called before each change."""
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    rewards = pyarrow.list_(pyarrow.struct([("name", pyarrow.string()), ("value", pyarrow.float64())]))
    columns = {
        **{"row": pyarrow.int64(), "sample": pyarrow.int64(), "row_hash": pyarrow.string()},
        **{"prompt": pyarrow.string(), "answer": pyarrow.string()},
        **{"score": pyarrow.float64(), "reward": pyarrow.float64(), "rewards": rewards},
        **{"finish": pyarrow.string(), "tokens": pyarrow.int64(), "weights": pyarrow.list_(pyarrow.int64())},
        "error": pyarrow.string(),
    }
    # Every split of a subset has the same columns, whatever the parts of its rewards.
    rows = [{**line, "rewards": _pairs(line.get("rewards"))} for line in lines]
    table = pyarrow.Table.from_pylist(rows, pyarrow.schema(columns.items()))
    content = io.BytesIO()
    parquet.write_table(table, content)
    path = folder / name / f"{step}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.write_atomic(path, content.getvalue(), require)
    paths = sorted(str(each.relative_to(folder)) for each in folder.glob("*/step_*.parquet"))
    atomic_file.write_atomic(folder / CARD, "".join(f"{line}\n" for line in card(paths)), require)


def _pairs(rewards: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    return None if rewards is None else [{"name": name, "value": value} for name, value in rewards.items()]


def card(paths: Sequence[str]) -> Iterator[str]:
    """Of a dataset with the tables SUBSET/SPLIT.parquet, sorted: the header by which the libraries find them."""
    yield from ("---", "configs:")
    for subset, tables in groupby(paths, key=lambda path: path.partition("/")[0]):
        yield from (f"- config_name: {_scalar(subset)}", "  data_files:")
        for path in tables:
            split = path.partition("/")[2].removesuffix(".parquet")
            yield from (f"  - split: {_scalar(split)}", f"    path: {_scalar(path)}")
    yield "---"
    yield "Answers of evaluations: each subset is what was evaluated, each split the step after which."


def _scalar(name: str) -> str:
    """In YAML: quoted where it would be a number, a truth value, nothing or no text at all."""
    return name if PLAIN.fullmatch(name) and yaml.safe_load(name) == name else json.dumps(name, ensure_ascii=False)
