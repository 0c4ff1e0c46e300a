"""`overlap`: training rows among the held-out rows of a configuration, and the warning of a start."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.data.readers import json_lines
from areal_like.rollout.evaluation.schedule import evaluation_order
from launcher.plan.build import build_plan
from tests.support.commands import Run, command_runner
from tests.support.planning import machine_with

FILE = """
defaults: [grpo, _self_]
task: {name: null}
reward: {name: exact}
train_dataset: {path: train.jsonl, batch_size: 2}
valid_dataset: {path: data}
evaluator:
  freq_steps: 5
  benchmarks:
  - {name: sums, path: addition}
  - {name: words, path: words.jsonl, fields: {prompt: question}}
"""
LONG = "Ann has three red apples and gives two of them to Ben, who has {} pears"


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return command_runner(tmp_path, capfd, monkeypatch)


def write(path: str, *prompts: str, name: str = "prompt") -> None:
    Path(path).parent.mkdir(exist_ok=True)
    rows = [{name: prompt, "answer": "1"} for prompt in prompts]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_all() -> None:
    Path("x.yaml").write_text(FILE)
    write("train.jsonl", "What is 1 + 1?", "what  is 2 + 2", LONG.format("nine"), "unlike")
    write("data/test.jsonl", "What is 1 + 1?", "What is 2 + 2?", "What is 3 + 3?")
    write("words.jsonl", LONG.format("ten"), "other", name="question")


def test_overlaps_are_counted_by_kind_and_shown(run: Run) -> None:
    write_all()
    with Path("train.jsonl").open("a") as file:
        file.write('{"other": 1}\n')
    done = run("overlap", "--config", "x.yaml")
    assert done.code == 0, done.err
    table = [line.split() for line in done.out.splitlines() if line.startswith(("valid_dataset ", "sums", "words"))]
    assert table[0] == ["valid_dataset", "3", "1", "(33.3%)", "2", "(66.7%)", "0"]
    assert table[1][2:] == ["0", "0", "0"] and table[2] == ["words", "2", "0", "0", "1", "(50.0%)"]
    assert "test.jsonl:1 is " in done.out and "train.jsonl:1\n    'What is 1 + 1?'" in done.out
    assert "test.jsonl:2 is, but for its form, " in done.out and "\n    'what  is 2 + 2'" in done.out
    assert "shares 78% of its 8-grams with training rows, such as " in done.out
    assert done.out.endswith("train_dataset: 1 invalid rows were left out\n")
    longer = run("overlap", "--config", "x.yaml", "--ngram", "16")
    assert "16-grams" in longer.out and "shares" not in longer.out


PAIRS = """
defaults: [reward_model, _self_]
train_dataset: {path: pairs.jsonl, batch_size: 2}
valid_dataset: {path: held.jsonl}
"""


def test_pairs_without_a_prompt_are_compared_and_lines_that_are_not_json_left_out(run: Run) -> None:
    pairs = [{"chosen": f"Human: {word}?\nAssistant: yes", "rejected": f"Human: {word}?\nno"} for word in "abc"]
    Path("pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs) + "{oh\n")
    Path("held.jsonl").write_text(json.dumps(pairs[1]) + "\n" + json.dumps({**pairs[0], "chosen": "else"}) + "\n")
    Path("x.yaml").write_text(PAIRS)
    done = run("overlap", "--config", "x.yaml")
    assert done.code == 0, done.err
    (held,) = (line.split() for line in done.out.splitlines() if line.startswith("valid_dataset "))
    assert held[1:4] == ["2", "1", "(50.0%)"]
    assert "held.jsonl:1 is " in done.out and "pairs.jsonl:2\n    'Human: b?" in done.out
    assert done.out.endswith("train_dataset: 1 invalid rows were left out\n")


@pytest.mark.parametrize(
    ("command", "change", "code"),
    [
        ("overlap", (), 0),
        ("overlap", ("evaluator.benchmarks.1.path=missing.jsonl",), 2),
        ("try", ("--answers=answers.jsonl", "evaluator.benchmarks=[]", "valid_dataset=null"), 0),
    ],
)
def test_what_large_files_are_converted_to_is_removed_at_the_end(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, change: tuple[str, ...], code: int
) -> None:
    write_all()
    Path("list.json").write_text(json.dumps([{"prompt": f"0{number}+04=", "answer": "1"} for number in range(4)]))
    Path("answers.jsonl").write_text(json.dumps({"row": 0, "completion": "1"}) + "\n")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(json_lines, "MAX_LIST_BYTES", 0)
    made: list[Path] = []
    write_lines = json_lines._write_lines

    def written(rows: Sequence[Any], folder: Path) -> None:
        write_lines(rows, folder)
        made.append(folder)

    monkeypatch.setattr(json_lines, "_write_lines", written)
    done = run(command, "--config", "x.yaml", "train_dataset.path=list.json", *change)
    assert done.code == code, done.err
    assert len(made) == 1 and made[0].is_relative_to(tmp_path / "temporary")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_only_rows_that_are_evaluated_count(run: Run) -> None:
    """Those that the evaluation takes, by their own numbers."""
    write("train.jsonl", *(f"question {number}" for number in range(9)))
    write("data/test.jsonl", *(f"question {number}" for number in range(9)))
    write("words.jsonl", "question 3", "other", name="question")
    Path("x.yaml").write_text(FILE)
    config = load("x.yaml").config
    first = evaluation_order(config.seed, "", 9)[0]
    done = run("overlap", "--config", "x.yaml", "evaluator.num_examples=1", "evaluator.benchmarks.1.num_examples=-1")
    table = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line[:3] in ("val", "sum", "wor")}
    assert table["valid_dataset"][:2] == ["1", "1"] and table["words"][:2] == ["2", "1"], done.out
    assert f"test.jsonl:{first + 1} is " in done.out and f"train.jsonl:{first + 1}\n" in done.out


def test_a_configuration_without_held_out_rows_and_a_wrong_size_are_refused(run: Run) -> None:
    message = run.refusal("overlap", "--config", "grpo.yaml", "valid_dataset=null")
    assert message.startswith("valid_dataset: is null, and there are no benchmarks")
    assert "'none' is not a number of words" in run.refusal("overlap", "--config", "grpo.yaml", "--ngram=none")
    assert "is only for the command overlap" in run.refusal("--config", "grpo.yaml", "--ngram=3")


def test_a_plan_warns_of_rows_in_both_files(run: Run) -> None:
    write_all()
    host = machine_with()._replace(directory=Path.cwd())

    def warned() -> list[str]:
        return [each for each in build_plan(load("x.yaml"), host=host).warnings if "training rows" in each]

    (warning,) = warned()
    assert warning.startswith("valid_dataset.path: 1 of its 3 rows are training rows too; the command `overlap`")
    write("data/test.jsonl", "What is 3 + 3?")
    assert warned() == []
