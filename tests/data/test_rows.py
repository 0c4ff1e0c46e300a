"""Rows of tasks and files: the same in all processes, and errors with their place."""

from types import SimpleNamespace

import pytest

from areal_like.config.problems import ConfigError
from areal_like.config.sections.data import DatasetConfig
from areal_like.config.task_names import task_name
from areal_like.data.datasets import load_datasets
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder

TASK = """
class Task:
    def __init__(self, count=3, kind="list"):
        self.count, self.kind = count, kind

    def rows(self, split):
        rows = [{"prompt": f"{split} {number}", "extra": {"n": number}} for number in range(self.count)]
        return {"list": rows, "none": None, "iterator": iter(rows), "bad": [{"prompt": {1}}], "set": [
            {"prompt": "x"}, {"prompt": "y", "more": {1}}]}[self.kind]

class Raises:
    def rows(self, split):
        return [][0]

class Shy:
    def __init__(self):
        raise OSError("the disk is away")

class NoTask:
    pass
"""


@pytest.fixture
def read(tmp_path):
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition"))
    (tmp_path / "mine.py").write_text(TASK)

    def read(path="", name=None, args=None, valid=None, kind="rl", **settings):
        def dataset(path):
            return DatasetConfig(**{"path": path, "type": kind, **settings})

        config = SimpleNamespace(
            task=SimpleNamespace(name=name, args=args or {}),
            evaluator=SimpleNamespace(benchmarks=[]),
            total_train_steps=None,
            train_dataset=dataset(path),
            valid_dataset=None if valid is None else dataset(valid),
        )
        return load_datasets(config, SearchFolders(tmp_path, tmp_path), tokenizer)

    return read


@pytest.fixture
def load_error(read):
    def load_error(*args, **settings):
        with pytest.raises(ConfigError) as caught:
            read(*args, **settings)
        return str(caught.value)

    return load_error


def test_a_task_named_by_the_configuration_has_train_and_test_rows(read):
    actual = read("addition", "addition", valid="addition")
    assert (len(actual.train), len(actual.valid)) == (8036, 1964)
    train, valid = ({row.hash for row in rows.inspect(range(len(rows)))} for rows in (actual.train, actual.valid))
    assert (len(train), len(valid), train & valid) == (8036, 1964, set())
    assert read("addition").train.digest == actual.train.digest
    assert read("addition", "addition", {"digits": 1}).train.digest != actual.train.digest
    assert actual.valid is actual.of("valid")


def test_the_task_is_named_by_either_key():
    config = SimpleNamespace(task=SimpleNamespace(name=None), train_dataset=SimpleNamespace(path="addition"))
    assert task_name(config) == "addition"
    config.train_dataset.path = "rows.jsonl"
    assert task_name(config) is None


def test_a_user_task_is_loaded_from_a_file(read):
    actual = read("", "mine.py:Task", {"count": 5}, valid="mine.py:Task")
    assert actual.train.rows[4] == {"prompt": "train 4", "extra": {"n": 4}}
    assert actual.valid.rows[0]["prompt"] == "test 0"


def test_empty_lines_in_json_lines_are_skipped(read, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "level": 2}\n\n{"prompt": "b"}\n')
    actual = read("rows.jsonl")
    assert list(actual.train.rows) == [{"prompt": "a", "level": 2}, {"prompt": "b"}]
    assert actual.train.source == str(tmp_path / "rows.jsonl")
    assert actual.valid is None
    with pytest.raises(ValueError, match="valid_dataset"):
        actual.of("valid")


def test_the_order_of_keys_in_a_line_does_not_matter(read, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "level": 2}\n')
    (tmp_path / "b.jsonl").write_text('{"level": 2, "prompt": "a"}\n')
    assert read("a.jsonl").train.digest == read("b.jsonl").train.digest


def test_a_folder_has_a_file_for_each_split(read, load_error, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text('{"prompt": "a"}\n')
    assert "has no valid.jsonl or validation.jsonl or test.jsonl" in load_error("rows", valid="rows")
    (tmp_path / "rows" / "test.jsonl").write_text('{"prompt": "b"}\n')
    assert read("rows", valid="rows").valid.rows[0]["prompt"] == "b"


@pytest.mark.parametrize("most", [None, 9])
def test_an_empty_file_is_an_error(load_error, tmp_path, most):
    (tmp_path / "rows.jsonl").touch()
    message = load_error("rows.jsonl", max_length=most)
    assert message == f"train_dataset.path: {tmp_path / 'rows.jsonl'} has no rows: it is empty"


def test_row_numbers_count_skipped_rows(read, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "abc"}\n{"prompt": "abcd"}\n\n{"prompt": "ab"}\n')
    actual = read("rows.jsonl", max_length=3).train
    assert [actual.place(index).rpartition(":")[2] for index in range(3)] == ["1", "2", "4"]


def test_rows_that_are_too_long_are_found(read, load_error, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "abc"}\n{"prompt": "abcd"}\n{"prompt": "ab"}\n')
    actual = read("rows.jsonl", max_length=3).train
    rows = [(actual.rows[row.row]["prompt"], row.is_too_long) for row in actual.inspect(range(len(actual)))]
    assert rows == [("abc", False), ("abcd", True), ("ab", False)]
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "ab", "answer": "c"}\n{"prompt": "ab", "answer": "cd"}\n')
    pairs = read("pairs.jsonl", max_length=4, kind="sft").train
    found = [row.is_too_long for row in pairs.inspect(range(len(pairs)))]
    assert found == [False, True], "the token that ends an answer counts"
    assert "has no rows of at most 1 tokens (train_dataset.max_length)" in load_error("rows.jsonl", max_length=1)


def test_a_prompt_that_cannot_be_tokenized_is_an_error_of_its_dataset(load_error, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1="}\n\n{"prompt": "eins und é"}\n', encoding="utf-8")
    message = load_error("rows.jsonl", max_length=9)
    assert message.startswith(f"train_dataset.path: {tmp_path / 'rows.jsonl'}:3: 'eins und é' cannot be tokenized")
    assert message.endswith(": it has no token for 'é'")


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        ('{"prompt": "a"}\n\nnonsense\n', "rl", "rows.jsonl:3 is not a JSON row"),
        ('{"prompt": "a"}\n{"prompt": NaN}\n', "rl", "rows.jsonl:2 is not a JSON row"),
        ('\n{"question": "a"}\n', "rl", "rows.jsonl:2: 'prompt' is missing; it has question"),
        ('{"prompt": ["a"]}\n', "rl", "rows.jsonl:1: 'prompt' is ['a']: item 0 is not a message such as {'role"),
        ('{"prompt": 7}\n', "rl", "rows.jsonl:1: 'prompt' is 7, neither a text nor a list of messages"),
        ('{"prompt": "a"}\n', "sft", "rows.jsonl:1: 'answer' is missing; it has prompt"),
        ('{"prompt": "", "answer": "b"}\n{"prompt": "a", "answer": ""}\n', "sft", "rows.jsonl:2: 'answer' is empty"),
        ('["a"]\n', "rl", "rows.jsonl:1 is list; a row is a dict with prompt"),
        ("\n", "rl", "rows.jsonl has no rows"),
    ],
)
def test_an_error_in_a_data_file_names_its_line(load_error, tmp_path, content, kind, text):
    (tmp_path / "rows.jsonl").write_text(content)
    message = load_error("rows.jsonl", kind=kind)
    assert message.startswith("train_dataset.path: ") and text in message


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"path": ""}, "train_dataset.path: is empty; set a file"),
        ({"path": "away.jsonl"}, "train_dataset.path: away.jsonl is not a file of JSON lines"),
        ({"name": "additon"}, "task.name: 'additon' is not built in; did you mean addition?"),
        ({"name": "addition", "args": {"digit": 2}}, "task.args: addition cannot be created with {'digit': 2}"),
        ({"name": "addition", "args": {"digits": 9}}, "task.name: addition could not be created: ValueError: digits"),
        ({"name": "mine.py:Tusk"}, "has no Tusk; did you mean Task?"),
        ({"name": "mine.py:NoTask"}, "task.name: mine.py:NoTask is not a task: it has no method rows(split)"),
        ({"name": "mine.py:Raises"}, "rows('train') of mine.py:Raises failed: MINE line 13, in rows: IndexError"),
        ({"name": "mine.py:Shy"}, "could not be created: MINE line 17, in __init__: OSError: the disk is away"),
        ({"name": "mine.py:Task", "args": {"kind": "none"}}, "returned NoneType; return a list"),
        ({"name": "mine.py:Task", "args": {"kind": "iterator"}}, "returned list_iterator; return a list"),
        ({"name": "mine.py:Task", "args": {"kind": "bad"}}, "row 0 of the train split of task mine.py:Task: 'prompt'"),
        (
            {"name": "mine.py:Task", "args": {"kind": "set"}},
            "row 1 of the train split of task mine.py:Task cannot be stored as JSON",
        ),
        ({"name": "mine.py:Task", "batch_size": 4}, "train_dataset.batch_size: 4 rows make a batch"),
        ({"name": "nowhere.py:Task"}, "task.name: there is no file nowhere.py"),
        ({"name": "no_such_package.x:Task"}, "task.name: no_such_package.x cannot be imported: ModuleNotFoundError"),
    ],
)
def test_an_unusable_dataset_is_one_message_that_begins_with_its_key(load_error, tmp_path, words, text):
    message = load_error(**words)
    assert text.replace("MINE", str(tmp_path / "mine.py")) in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import json\nimport nothing_of_that_name\n", "line 2: ModuleNotFoundError: No module named"),
        ("x = 1\ndef f(:\n", "line 2: SyntaxError"),
        ("def f():\n    return 1 / 0\n\nf()\n", "line 2, in f: ZeroDivisionError"),
        ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_names_the_line_and_the_error(load_error, tmp_path, source, text):
    (tmp_path / "broken.py").write_text(source)
    message = load_error(name="broken.py:Task")
    assert message.startswith(f"task.name: broken.py cannot be imported: {tmp_path / 'broken.py'} {text}")


def test_user_code_can_import_files_beside_it(read, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "neighbour_of_the_task.py").write_text("PROMPT = 'hello'\n")
    (tmp_path / "sub" / "task.py").write_text(
        "from neighbour_of_the_task import PROMPT\n"
        "class Task:\n"
        "    def rows(self, split):\n"
        "        return [{'prompt': PROMPT}]\n"
    )
    assert read(name="sub/task.py:Task").train.rows[0]["prompt"] == "hello"
