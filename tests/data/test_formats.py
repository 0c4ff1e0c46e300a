"""The same rows from JSON, parquet, folders of `datasets`, and the cache of the Hub."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.problems import ConfigError
from areal_like.config.sections.data import DatasetConfig
from areal_like.data.checked_rows import row_hash
from areal_like.data.datasets import Datasets, load_datasets
from areal_like.data.readers import arrow_tables, dataset_source
from areal_like.data.readers.hub import snapshot
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.process.errors import Failure
from tests.support.chat_models import ANSWER, PLAIN, TALK, USER, chat_folder
from tests.support.model_hub import list_files
from tests.support.planning import loaded

ROOT = Path(__file__).parents[2]
ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n), "level": n % 3} for n in range(20)]
REVISION = "0123456789abcdef0123456789abcdef01234567"


def load(
    folder: Path, path: str | list[str], valid: str | None = None, model: Path | None = None, **settings: Any
) -> Datasets:
    own = {name.removeprefix("valid_"): value for name, value in settings.items() if name.startswith("valid_")}
    settings = {name: value for name, value in settings.items() if not name.startswith("valid_")}
    config = SimpleNamespace(
        task=SimpleNamespace(name=None, args={}),
        evaluator=SimpleNamespace(benchmarks=[]),
        train_dataset=DatasetConfig(**{"path": path, "type": "sft", **settings}),
        valid_dataset=None if valid is None else DatasetConfig(**{"path": valid, "type": "sft", **settings, **own}),
    )
    tokenizer = TextTokenizer(model or model_folder("builtin:tiny-addition"))
    return load_datasets(config, SearchFolders(folder, folder), tokenizer, folder / "data.json")


def load_error(folder: Path, path: str | list[str], **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, path, **settings)
    return str(caught.value)


def write_lines(file: Path, rows: list[Any] = ROWS) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_parquet(file: Path, rows: list[Any] = ROWS) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=7)
    return file


def write_saved(folder: Path, rows: list[Any] = ROWS) -> Path:
    """As `Dataset.save_to_disk` does, in two files."""
    pyarrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    table = pyarrow.Table.from_pylist(rows)
    names = [f"data-0000{part}-of-00002.arrow" for part in range(2)]
    for name, part in zip(names, (table.slice(0, 8), table.slice(8)), strict=True):
        with pyarrow.OSFile(str(folder / name), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_every_file_format_gives_the_same_rows(tmp_path):
    lines = load(tmp_path, str(write_lines(tmp_path / "rows.jsonl"))).train
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=1))
    others = (tmp_path / "rows.json", write_parquet(tmp_path / "rows.parquet"), write_saved(tmp_path / "saved"))
    for place in others:
        actual = load(tmp_path, place.name).train
        assert list(actual.rows) == [actual.rows[number] for number in range(20)] == ROWS == list(lines.rows)
        assert actual.digest == lines.digest and actual.rows[2:4] == ROWS[2:4]


def test_a_json_file_may_hold_json_lines(tmp_path):
    assert len(load(tmp_path, write_lines(tmp_path / "rows.json").name).train) == 20


@pytest.mark.parametrize(
    ("train", "valid"),
    [
        ("train.jsonl", "valid.jsonl"),
        ("train-0-of-1.parquet", "test-0-of-1.parquet"),
        ("data/train.jsonl", "data/test.jsonl"),
        ("data/train.parquet", "data/validation.parquet"),
        ("data/train-0.parquet", "data/validation-0.parquet"),
    ],
)
def test_a_folder_has_a_file_for_each_of_its_splits(tmp_path, train, valid):
    write = write_lines if train.endswith("l") else write_parquet
    write(tmp_path / "rows" / train, ROWS)
    write(tmp_path / "rows" / valid, ROWS[:4])
    actual = load(tmp_path, "rows", valid="rows")
    assert actual.valid is not None and (len(actual.train), len(actual.valid)) == (20, 4)


def test_parts_of_a_split_are_joined_in_the_order_of_their_names(tmp_path):
    for number in (1, 0):
        write_parquet(tmp_path / "rows" / "data" / f"train-{number}-of-2.parquet", ROWS[10 * number : 10 * number + 10])
    assert list(load(tmp_path, "rows").train.rows) == ROWS


def test_a_saved_dataset_dict_has_its_splits(tmp_path):
    for name, rows in (("train", ROWS), ("test", ROWS[:4]), ("hard", ROWS[:3])):
        write_saved(tmp_path / "saved" / name, rows)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test", "hard"]}')
    actual = load(tmp_path, "saved", valid="saved")
    assert actual.valid is not None and (len(actual.train), len(actual.valid)) == (20, 4)
    assert len(load(tmp_path, "saved", split="hard").train) == 3
    message = load_error(tmp_path, "saved", split="easy")
    assert message.endswith("has no split easy; it has train, test, hard") and message.startswith(
        "train_dataset.split: "
    )


def test_a_split_of_one_file_is_refused(tmp_path):
    message = load_error(tmp_path, write_lines(tmp_path / "rows.jsonl").name, split="test")
    assert message.startswith("train_dataset.split: ") and "leave it out" in message


@pytest.mark.parametrize("name", ["subset", "revision"])
def test_hub_settings_are_refused_for_files_and_folders(tmp_path, name):
    write_lines(tmp_path / "rows" / "train.jsonl")
    for path in ("rows", "rows/train.jsonl"):
        message = load_error(tmp_path, path, **{name: "v2"})
        assert message.startswith(f"train_dataset.{name}: ") and message.endswith(f"has no {name} v2; leave it out")


def test_a_split_of_a_saved_folder_of_one_is_refused(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    assert load_error(tmp_path, "saved", split="test").startswith("train_dataset.split: ")


@pytest.mark.parametrize("name", ["split", "subset", "revision"])
def test_settings_that_a_task_does_not_have_are_refused(tmp_path, name):
    message = load_error(tmp_path, "addition", **{name: "hard"})
    assert message.startswith(f"train_dataset.{name}: ") and "task addition" in message


def test_a_file_that_changes_during_reading_is_an_error(tmp_path):
    file = write_lines(tmp_path / "rows.jsonl")
    rows = load(tmp_path, file.name).train.rows
    text = file.read_text()
    file.write_text(text.replace("3+3=", "4+4="))
    for use in (lambda: rows[3], lambda: list(rows)):
        with pytest.raises(Failure, match=r"^train_dataset\.path: .*rows\.jsonl changed while the run reads it"):
            use()
    file.write_text(text[:40])
    with pytest.raises(Failure, match="changed while"):
        rows[19]


def test_a_replaced_file_does_not_change_rows_in_use(tmp_path):
    file = write_lines(tmp_path / "rows.jsonl")
    rows = load(tmp_path, file.name).train.rows
    write_lines(tmp_path / "new.jsonl", ROWS[:1]).replace(file)
    assert list(rows) == ROWS


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("rows.parquet", "nonsense", "rows.parquet cannot be read as parquet"),
        ("rows.json", "[1,", "rows.json is not a JSON list of rows"),
        ("saved/dataset_dict.json", "{", "dataset_dict.json cannot be read"),
        ("saved/state.json", "{}", "saved is not a complete folder of datasets.save_to_disk"),
        ("saved/state.json", '{"_data_files": [{"filename": "away"}]}', "saved is not a complete folder"),
    ],
)
def test_an_error_about_a_damaged_file_names_it(tmp_path, name, content, text):
    pytest.importorskip("pyarrow")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    message = load_error(tmp_path, name.partition("/")[0])
    assert message.startswith("train_dataset.path: ") and text in message


@pytest.mark.parametrize("cut", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["parquet", "saved"])
def test_a_file_of_tables_that_was_cut_off_is_an_error_that_names_it(tmp_path, kind, cut):
    if kind == "parquet":
        file = write_parquet(tmp_path / "rows.parquet", ROWS * 50)
        path = text = file.name
    else:
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_list(ROWS * 50).save_to_disk(tmp_path / "saved")
        [file], path, text = (tmp_path / "saved").glob("*.arrow"), "saved", "saved is not a complete folder"
    os.truncate(file, int(file.stat().st_size * cut))
    message = load_error(tmp_path, path)
    assert message.startswith("train_dataset.path: ") and text in message


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.parquet"])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path, name, monkeypatch):
    write_lines(tmp_path / name)
    monkeypatch.setattr(dataset_source.DatasetSource, "_read", refuse)
    message = load_error(tmp_path, name)
    assert message == f"train_dataset.path: {tmp_path / name} cannot be read: Input/output error"


def refuse(source: Any, files: list[Path]) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(files[0]))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_integers_of_more_than_64_bits_keep_their_digits(tmp_path, name):
    rows = [{"prompt": "a", "answer": "b", "number": sign * 10**size + 7} for size in (17, 19, 40) for sign in (1, -1)]
    text = json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(text)
    read = load(tmp_path, name).train.rows
    assert [row["number"] for row in read] == [row["number"] for row in rows]
    assert len({row_hash(row) for row in read}) == len(rows)


def test_a_missing_package_is_named_with_its_install_command(tmp_path, monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(arrow_tables, "import_module", missing)
    (tmp_path / "rows.parquet").touch()
    message = load_error(tmp_path, "rows.parquet")
    assert (
        message.startswith("train_dataset.path: ")
        and "install -c constraints.txt pyarrow" in message
        and "pyarrow" in message
    )


def test_a_list_of_paths_is_one_dataset_in_its_order(tmp_path):
    write_lines(tmp_path / "one.jsonl", ROWS[:5])
    write_parquet(tmp_path / "two.parquet", ROWS[5:12])
    write_saved(tmp_path / "three", ROWS)
    actual = load(tmp_path, ["one.jsonl", "two.parquet", "three"]).train
    assert list(actual.rows) == [*ROWS[:12], *ROWS] == [actual.rows[number] for number in range(32)]
    assert actual.place(4).endswith("one.jsonl:5") and actual.place(5).startswith(f"row 0 of {tmp_path}/two.parquet")
    assert actual.place(31).endswith("row 19 of " + str(tmp_path / "three"))
    assert actual.source == " and ".join(str(tmp_path / name) for name in ("one.jsonl", "two.parquet", "three"))


def test_an_invalid_row_of_a_list_names_its_own_file(tmp_path):
    write_lines(tmp_path / "one.jsonl")
    write_lines(tmp_path / "two.jsonl", [*ROWS[:2], {"prompt": "1"}])
    message = load_error(tmp_path, ["one.jsonl", "two.jsonl"])
    assert message.startswith(f"train_dataset.path: {tmp_path}/two.jsonl:3: 'answer' is missing")


# The Hub: its cache alone, in a process without network


def cached(folder: Path, *, subset: str = "") -> Path:
    """A dataset in the cache as a download leaves it."""
    repository = folder / "hub" / "datasets--org--sums"
    snapshot = repository / "snapshots" / REVISION
    write_lines(snapshot / subset / "train.jsonl")
    write_lines(snapshot / subset / "test.jsonl", ROWS[:4])
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    list_files(snapshot)
    return snapshot


def offline(folder: Path, *calls: str) -> subprocess.CompletedProcess[str]:
    """`load` of this module with the dataset; each call may add keys."""
    pytest.importorskip("datasets")
    code = "from pathlib import Path; from tests.data.test_formats import load, ROWS; here = Path('.');"
    code += "".join(
        f"found = load(here, 'org/sums', {call}); print(len(found.train), found.valid and len(found.valid), "
        "list(found.train.rows) == ROWS, '|', found.train.source);"
        for call in calls
    )
    cache = {"HF_HUB_CACHE": str(folder / "hub"), "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        env={**os.environ, **cache, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_hub_name_is_a_snapshot_whose_revision_is_recorded(tmp_path):
    cached(tmp_path)
    done = offline(tmp_path, "'org/sums'", "None, split='test'")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"20 4 True | split train of org/sums (revision {REVISION[:12]})"
    assert second.startswith("4 None False | split test of org/sums")
    record = json.loads((tmp_path / "data.json").read_text())
    assert record["train_dataset"]["hub"]["org/sums"]["revision"] == REVISION
    assert (record["train_dataset"]["rows"], record["valid_dataset"]["rows"]) == (4, 4)


def test_a_resumed_run_keeps_its_dataset_revision(tmp_path):
    """Although the branch has moved on since."""
    old = cached(tmp_path)
    assert offline(tmp_path, "").returncode == 0
    newer = old.with_name(REVISION[::-1])
    write_lines(newer / "train.jsonl", ROWS[:6])
    (old.parents[1] / "refs" / "main").write_text(newer.name)
    done = offline(tmp_path, "")
    assert done.stdout.startswith("20 None True"), done.stderr
    (tmp_path / "data.json").unlink()
    assert offline(tmp_path, "").stdout.startswith("6 None False")


def test_two_benchmarks_with_the_same_dataset_each_keep_the_revision_that_they_name(tmp_path, monkeypatch):
    cached(tmp_path)
    (tmp_path / "hub/datasets--org--sums/refs/v2").write_text(REVISION)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for index, revision in enumerate((None, "v2")):
        snapshot(f"evaluator.benchmarks.{index}.path", "org/sums", revision, tmp_path / "data.json")
    record = json.loads((tmp_path / "data.json").read_text())
    asked = [record[f"evaluator.benchmarks.{index}"]["hub"]["org/sums"]["asked"] for index in range(2)]
    assert asked == [None, "v2"]


def test_a_dataset_that_is_neither_cached_nor_downloadable_is_one_error(tmp_path):
    done = offline(tmp_path, "")
    message = done.stderr.splitlines()[-1]
    assert "train_dataset.path: org/sums is not in the Hugging Face cache (" in message
    assert "downloads are turned off (OfflineModeIsEnabled: " in message
    assert message.endswith(
        "`python -m areal_like.models.fetch --dataset org/sums` on a machine with a network, or set the path of a "
        "file or folder"
    )


def test_a_part_of_a_dataset_serves_the_subset_that_is_there_and_names_the_remedy_for_another(tmp_path):
    """As `load_dataset("org/sums", "main")` leaves it: the description of all subsets, and one of them."""
    snapshot = cached(tmp_path, subset="main")
    (snapshot.parents[1] / "trees" / f"{REVISION}.json").unlink()
    configs = [{"config_name": part, "data_files": f"{part}/train.jsonl"} for part in ("main", "socratic")]
    (snapshot / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    done = offline(tmp_path, "", "None, subset='socratic'")
    assert done.stdout.split()[0] == "20", done.stderr
    message = done.stderr.splitlines()[-1]
    assert f"org/sums at revision {REVISION} is only in part in the Hugging Face cache (" in message
    assert "socratic/train.jsonl" in message
    assert f"`python -m areal_like.models.fetch --dataset org/sums --revision {REVISION}`" in message


def test_the_subset_main_is_used_unless_a_default_or_name_is_given(tmp_path):
    """As those of AReaL's examples who train on gsm8k expect."""
    for part in ("main", "socratic"):
        snapshot = tmp_path / "hub" / "datasets--org--sums" / "snapshots" / REVISION
        write_lines(snapshot / part / "train.jsonl", ROWS if part == "main" else ROWS[:3])
    configs = [{"config_name": part, "data_files": f"{part}/train.jsonl"} for part in ("main", "socratic")]
    (snapshot / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(REVISION)
    done = offline(tmp_path, "", "None, subset='socratic'")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["20", "3"], done.stderr
    (snapshot / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n".replace("main", "other"))
    (snapshot / "main").rename(snapshot / "other")
    message = offline(tmp_path, "").stderr.splitlines()[-1]
    assert message.endswith(
        "train_dataset.subset: the dataset has several subsets and no default; set one of other, socratic"
    )


def test_an_unknown_split_or_subset_is_an_error(tmp_path):
    cached(tmp_path)
    message = offline(tmp_path, "split='tain'").stderr.splitlines()[-1]
    assert message.endswith("train_dataset.split: there is no split tain; splits are train, test")
    message = offline(tmp_path, "subset='hard'").stderr.splitlines()[-1]
    assert "train_dataset.path: " in message and "hard" in message


# What rows may look like


def test_fields_renames_columns_of_rows(tmp_path):
    theirs = [{"question": row["prompt"], "truth": {"sum": row["answer"]}, "level": 1} for row in ROWS]
    write_lines(tmp_path / "rows.jsonl", theirs)
    actual = load(tmp_path, "rows.jsonl", fields={"prompt": "question", "answer": "truth.sum"}).train
    assert actual.rows[3] == {"prompt": "3+3=", "answer": "6", "level": 1, "truth": {"sum": "6"}}
    message = load_error(tmp_path, "rows.jsonl", fields={"prompt": "question", "answer": "truth.total"})
    assert message.endswith(
        "rows.jsonl:1: 'truth.total' (train_dataset.fields.answer) is missing; it has question, truth, level"
    )


@pytest.mark.parametrize(
    ("experiment", "section", "name", "suggestion"),
    [
        ("sft", "train_dataset", "answr", "answer? There are: prompt, answer, messages, tools"),
        ("sft", "valid_dataset", "mesages", "messages? There are: prompt, answer, messages, tools"),
        ("reward_model", "train_dataset", "choosen", "chosen? There are: prompt, chosen, rejected, tools"),
    ],
)
def test_fields_that_nothing_reads_are_refused(experiment, section, name, suggestion):
    """Once, although valid_dataset follows train_dataset."""
    with pytest.raises(ConfigError) as caught:
        loaded(experiment, f"{section}.fields={{prompt: question, {name}: theirs}}")
    (message,) = caught.value.problems
    assert message.key == f"{section}.fields.{name}"
    assert message.message == f"is not a column of such rows; did you mean {suggestion}"


def test_fields_may_rename_columns_for_a_reward():
    assert loaded("grpo", "train_dataset.fields={answers: theirs}").config.train_dataset.fields == {"answers": "theirs"}


def test_as_chat_turns_a_prompt_into_a_user_message(tmp_path):
    model = chat_folder(tmp_path / "m")
    write_lines(tmp_path / "rows.jsonl")
    actual = load(tmp_path, "rows.jsonl", model=model, as_chat=True).train
    assert actual.rows[1]["prompt"] == [{"role": "user", "content": "1+1="}] and actual.has_messages
    assert not load(tmp_path, "rows.jsonl", model=model).train.has_messages


@pytest.mark.parametrize("write", [write_lines, write_parquet])
def test_messages_are_a_prompt_and_the_last_answer(tmp_path, write):
    file = write(tmp_path / ("rows.jsonl" if write is write_lines else "rows.parquet"), [{"messages": TALK}] * 2)
    model = chat_folder(tmp_path / "m")
    sft = load(tmp_path, file.name, model=model).train.rows[1]
    assert (sft["prompt"], sft["answer"]) == (TALK[:3], TALK[3:])
    rl = load(tmp_path, file.name, model=model, type="rl").train.rows[1]
    assert (rl["prompt"], rl["answer"]) == (TALK[:3], "4")


def test_messages_without_an_answer_are_a_prompt(tmp_path):
    write_lines(tmp_path / "rows.jsonl", [{"messages": TALK[:3], "answer": "7"}])
    model = chat_folder(tmp_path / "m")
    row = load(tmp_path, "rows.jsonl", model=model, type="rl").train.rows[0]
    assert (row["prompt"], row["answer"]) == (TALK[:3], "7")
    write_lines(tmp_path / "rows.jsonl", [{"messages": [USER]}])
    assert "rows.jsonl:1: 'messages' has no message of the assistant" in load_error(tmp_path, "rows.jsonl", model=model)


def test_null_values_added_by_arrow_are_not_part_of_a_message(tmp_path):
    rows = [{"messages": [USER, ANSWER]}, {"messages": [{**USER, "name": "eve"}, ANSWER]}]
    file = write_parquet(tmp_path / "rows.parquet", rows)
    actual = load(tmp_path, file.name, model=chat_folder(tmp_path / "m")).train
    assert actual.rows[0]["prompt"] == [USER] and actual.rows[1]["prompt"] == [{**USER, "name": "eve"}]


def test_pairs_without_a_prompt_are_whole_texts(tmp_path):
    write_lines(tmp_path / "rows.jsonl", [{"chosen": "1+1=2", "rejected": "1+1=3"}])
    assert load(tmp_path, "rows.jsonl", type="rw").train.rows[0]["prompt"] == ""
    whole = [USER, ANSWER]
    write_lines(tmp_path / "rows.jsonl", [{"chosen": whole, "rejected": whole}])
    assert load(tmp_path, "rows.jsonl", type="rw", model=chat_folder(tmp_path / "m")).train.rows[0]["prompt"] == []


def test_messages_without_a_template_are_an_error_of_the_tokenizer(tmp_path):
    write_lines(tmp_path / "rows.jsonl", [{"prompt": [USER], "answer": "2"}])
    assert load_error(tmp_path, "rows.jsonl").startswith("tokenizer_path: ")


def test_a_row_refused_by_the_template_is_named_by_its_line(tmp_path):
    """The first one and any other."""
    template = "{% if messages|length > 2 %}{{ raise_exception('no more') }}{% endif %}" + PLAIN
    model = chat_folder(tmp_path / "m", template)
    for rows in ([TALK, TALK[:2]], [TALK[:2], TALK[:2], TALK]):
        write_lines(tmp_path / "rows.jsonl", [{"messages": each} for each in rows])
        message = load_error(tmp_path, "rows.jsonl", model=model, max_length=99)
        line = rows.index(TALK) + 1
        assert message.startswith(
            f"train_dataset.path: {tmp_path}/rows.jsonl:{line}: {model}/chat_template.jinja cannot"
        )
        assert message.endswith(": no more")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"messages": "hello"}, "'messages' is 'hello', not a list of messages"),
        ({"messages": []}, "'messages' is [], not a list of messages"),
        ({"messages": [{"to": 1}]}, "'messages' is [{'to': 1}]: item 0 is not a message such as {'role'"),
        ({"prompt": [USER], "answer": []}, "'answer' is [], not a list of messages"),
        ({"prompt": None, "answer": "2"}, "'prompt' is None, neither a text nor a list of messages"),
    ],
)
def test_invalid_messages_are_named_by_their_line(tmp_path, row, text):
    write_lines(tmp_path / "rows.jsonl", [row])
    assert f"rows.jsonl:1: {text}" in load_error(tmp_path, "rows.jsonl")
