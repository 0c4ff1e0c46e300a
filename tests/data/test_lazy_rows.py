"""Rows are read on access, and are found without reading them all into memory."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.problems import ConfigError
from areal_like.config.sections.data import DatasetConfig
from areal_like.data.checked_rows import CHECKED_AT_START, INVALID, InvalidRow
from areal_like.data.data_record import ROW_CACHE
from areal_like.data.datasets import load_datasets
from areal_like.data.readers import arrow_tables, json_lines, line_index
from areal_like.data.readers.row_cache import RowCache
from areal_like.data.tasks.base import RowSequence
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.process.errors import FinalFailure, InfrastructureError

ROWS = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(600)]


def load(folder: Path, path: str, **settings: Any) -> Any:
    dataset: Any = DatasetConfig
    config = SimpleNamespace(
        task=SimpleNamespace(name=None, args={}),
        train_dataset=dataset(path=path, **settings),
        valid_dataset=None,
        evaluator=SimpleNamespace(benchmarks=[]),
    )
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition"))
    return load_datasets(config, SearchFolders(folder, folder), tokenizer, folder / "run" / "data.json").train


def write_lines(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("end", ["", "\n", "\n\n  \n"])
@pytest.mark.parametrize("block", [1, 7, 64, 1 << 22])
def test_lines_are_found_in_blocks_of_any_size(tmp_path, monkeypatch, block, end):
    monkeypatch.setattr(line_index, "BLOCK", block)
    lines = ['{"a": 1}', "", " \t", '  {"b": [2, 3]}', '{"c": "é"}', "\r", '{"d": 4}\r']
    (tmp_path / "rows.jsonl").write_bytes(("\n".join(lines) + end).encode())
    with (tmp_path / "rows.jsonl").open("rb") as file:
        index = line_index.scan(file.fileno())
        content = file.read()
    found = [content[start:stop].decode() for start, stop in zip(index.offsets, index.ends, strict=True)]
    assert found == [lines[0], lines[3], lines[4], lines[6]]
    assert index.numbers.tolist() == [1, 4, 5, 7]


def test_the_lines_of_a_file_are_found_once_for_all_processes_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(line_index, "MIN_BYTES", 0)
    file = write_lines(tmp_path / "rows.jsonl", ROWS)
    scans: list[int] = []
    scan = line_index.scan

    def counted(descriptor: int) -> line_index.LineIndex:
        scans.append(descriptor)
        return scan(descriptor)

    monkeypatch.setattr(line_index, "scan", counted)
    first, second = load(tmp_path, file.name), load(tmp_path, file.name)
    assert len(scans) == 1 and first.digest == second.digest
    assert list(second.rows) == ROWS and second.place(599).endswith("rows.jsonl:600")
    write_lines(file, ROWS[:500])
    assert len(load(tmp_path, file.name)) == 500 and len(scans) == 2


def test_a_large_parquet_file_is_mapped_and_not_read_into_memory(tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for part in range(2):
        table = pyarrow.Table.from_pylist(ROWS[300 * part : 300 * part + 300])
        parquet.write_table(table, tmp_path / f"train-{part}.parquet", row_group_size=70)
    in_memory = load(tmp_path, str(tmp_path))
    assert not (tmp_path / "run" / ROW_CACHE).exists()
    monkeypatch.setattr(arrow_tables, "MAX_PARQUET_BYTES", 0)
    mapped = load(tmp_path, str(tmp_path))
    assert len(list((tmp_path / "run" / ROW_CACHE).glob("*/rows.arrow"))) == 2
    assert list(mapped.rows) == list(in_memory.rows) == ROWS
    assert [mapped.rows[number] for number in (0, 299, 300, 599)] == [ROWS[at] for at in (0, 299, 300, 599)]
    assert mapped.digest == in_memory.digest and mapped.inspect([450]) == in_memory.inspect([450])


def test_a_large_json_list_becomes_lines_that_are_read_on_access(tmp_path, monkeypatch):
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=1))
    in_memory = load(tmp_path, "rows.json")
    monkeypatch.setattr(json_lines, "MAX_LIST_BYTES", 0)
    read = load(tmp_path, "rows.json")
    assert len(list((tmp_path / "run" / ROW_CACHE).glob("*/rows.jsonl"))) == 1
    assert list(read.rows) == ROWS and read.digest == in_memory.digest
    assert read.place(3) == in_memory.place(3) == f"row 3 of {tmp_path / 'rows.json'}"


def test_an_interrupted_entry_of_the_cache_is_made_again(tmp_path):
    file, cache = write_lines(tmp_path / "rows.jsonl", ROWS), RowCache(tmp_path / "cache")

    def interrupted(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.entry([file], interrupted, least=0)
    entry = cache.entry([file], lambda folder: (folder / "whole").touch(), least=0)
    assert entry is not None and [path.name for path in entry.iterdir()] == ["whole"]
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [entry.name, "lock"]


def test_rows_far_apart_are_checked_before_the_start(tmp_path):
    rows = [*ROWS, {"question": "1"}]
    with pytest.raises(ConfigError, match=r"^train_dataset\.path: .*rows\.jsonl:601: 'prompt' is missing"):
        load(tmp_path, write_lines(tmp_path / "rows.jsonl", rows).name)
    assert len(ROWS) > CHECKED_AT_START


@pytest.mark.parametrize(
    ("bad", "settings", "text"),
    [
        ('{"prompt": \n', {}, "rows.jsonl:2 is not a JSON row"),
        ({"question": "1"}, {}, "rows.jsonl:2: 'prompt' is missing; it has question"),
        ({"prompt": "é"}, {"max_length": 9}, "rows.jsonl:2: 'é' cannot be tokenized"),
    ],
)
def test_an_invalid_row_is_an_error_of_the_group_that_uses_it(tmp_path, bad, settings, text):
    rows = load(tmp_path, write_lines(tmp_path / "rows.jsonl", [ROWS[0], bad, *ROWS[2:]]).name, **settings)
    assert rows.inspect([1]) == [(1, INVALID, False)]
    with pytest.raises(InvalidRow, match=r"^train_dataset\.path: ") as caught:
        rows.row(1, INVALID)
    assert text in str(caught.value)
    assert rows.row(2, rows.inspect([2])[0].hash) == ROWS[2]


class Fragile(RowSequence):
    """Row 300 raises `faults`, one after the other, and is then there."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)

    def __len__(self) -> int:
        return len(ROWS)

    def row(self, index: int) -> Any:
        if index == 300 and self.faults:
            raise self.faults.pop(0)
        return ROWS[index]


def fragile(folder: Path, *faults: Exception) -> Any:
    return replace(load(folder, write_lines(folder / "rows.jsonl", ROWS).name), rows=Fragile(*faults))


@pytest.mark.parametrize("kind", [KeyError, IndexError, ZeroDivisionError, FileNotFoundError, InfrastructureError])
def test_a_lazy_row_that_raises_is_an_error_of_the_group_that_uses_it(tmp_path, kind):
    rows = fragile(tmp_path, kind("no such part"), kind("no such part"))
    assert rows.inspect([300]) == [(300, INVALID, False)]
    with pytest.raises(InfrastructureError if kind is InfrastructureError else InvalidRow) as caught:
        rows.row(300, INVALID)
    if kind is not InfrastructureError:
        text = str(caught.value)
        assert text.startswith("train_dataset.path: ") and "rows.jsonl:301: " in text
        assert f"{kind.__name__}: " in text and "no such part" in text


def test_a_row_that_can_be_read_only_at_the_second_time_fails_its_group_and_not_the_run(tmp_path):
    rows = fragile(tmp_path, ConnectionError("not now"))
    assert rows.inspect([300]) == [(300, INVALID, False)]
    with pytest.raises(InvalidRow, match=r"rows\.jsonl:301: could not be read before, and can be now"):
        rows.row(300, INVALID)


def test_a_lazy_row_may_end_the_run(tmp_path):
    rows = fragile(tmp_path, FinalFailure("enough"), FinalFailure("enough"))
    with pytest.raises(FinalFailure, match="enough"):
        rows.inspect([300])
    with pytest.raises(FinalFailure, match="enough"):
        rows.row(300, INVALID)


def test_another_row_than_the_one_that_was_inspected_ends_the_run(tmp_path):
    file = write_lines(tmp_path / "rows.jsonl", ROWS)
    before = load(tmp_path, file.name).inspect([3])[0].hash
    write_lines(file, [*ROWS[:3], {"prompt": "7+7=", "answer": "14"}, *ROWS[4:]])
    changed = load(tmp_path, file.name)
    with pytest.raises(FinalFailure, match=r"^train_dataset: .*rows\.jsonl:4 has changed since it was read first"):
        changed.row(3, before)


@pytest.mark.parametrize("change", ["a row", "max_length", "fields"])
def test_the_digest_shows_changed_rows_and_settings(tmp_path, change):
    file = write_lines(tmp_path / "rows.jsonl", ROWS)
    before = load(tmp_path, file.name)
    assert load(tmp_path, file.name).digest == before.digest
    if change == "a row":
        write_lines(file, [*ROWS[:3], {"prompt": "7+7=", "answer": "14"}, *ROWS[4:]])
    changes: dict[str, dict[str, Any]] = {"max_length": {"max_length": 9}, "fields": {"fields": {"prompt": "answer"}}}
    assert load(tmp_path, file.name, **changes.get(change, {})).digest != before.digest
