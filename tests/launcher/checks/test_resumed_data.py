"""A resumed run is refused with another tokenizer or other rows before anything starts; what else may change."""

import json
from pathlib import Path

import pytest

from areal_like.config.load import load
from areal_like.data.checked_rows import check_rows, digest_of
from areal_like.data.datasets import find_rows
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.process.frames import pack
from launcher.checks.resumed_data import CHANGES, other_row_problems, tokenizer_problems
from launcher.plan.plan import RunDirectory
from tests.support.planning import ROOT, machine_with

MODEL = model_folder("builtin:tiny-addition")
EXPERIMENT = ROOT / "experiments" / "grpo.yaml"


def resumed(tmp_path: Path, digest: str = "", before: str = "{}") -> RunDirectory:
    """A run with a checkpoint of step 5."""
    checkpoint = tmp_path / "run" / "checkpoints" / "step_000005"
    (checkpoint / "resume").mkdir(parents=True, exist_ok=True)
    (tmp_path / "run" / "config.yaml").write_text(before)
    (checkpoint / "tokenizer.json").write_bytes((MODEL / "tokenizer.json").read_bytes())
    header = {"format": 3, "digest": f"{digest}/of-valid"}
    (checkpoint / "resume" / "controller.frame").write_bytes(pack(header, [b"arrays"]))
    return RunDirectory(str(tmp_path / "run"), "run", "continues", "", 5, 2)


def host_at(folder: Path):
    return machine_with()._replace(directory=folder)


def tokenizers(tmp_path: Path, content: bytes) -> list[str]:
    """Obstacles to going on with a tokenizer whose file has this content."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_bytes(content)
    config = load(EXPERIMENT, [f"tokenizer_path={tmp_path}/other"]).config
    return [each.text() for each in tokenizer_problems(config, host_at(tmp_path), resumed(tmp_path))]


def test_a_resumed_run_refuses_a_tokenizer_with_other_ids(tmp_path):
    content = json.loads((MODEL / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (problem,) = tokenizers(tmp_path, json.dumps(content).encode())
    assert problem.startswith(f"tokenizer_path: {tmp_path}/other is another tokenizer than that of the checkpoint of")
    assert "step 5 (tokenizer.json differs); keep that one, or start a new run from those weights with " in problem
    assert problem.endswith(f"actor.path={tmp_path}/run/checkpoints/step_000005")


def test_the_same_tokenizer_elsewhere_and_otherwise_formatted_is_no_other(tmp_path):
    content = {**json.loads((MODEL / "tokenizer.json").read_text()), "truncation": None, "padding": None}
    assert tokenizers(tmp_path, json.dumps(content, indent=3).encode()) == []
    config = load(EXPERIMENT, []).config
    assert list(tokenizer_problems(config, host_at(tmp_path), resumed(tmp_path))) == [], "that of the model itself"


ROWS = [f'{{"prompt": "{n}+{n}=", "answer": "{2 * n}"}}\n' for n in range(300)]


def with_rows(tmp_path: Path, *words: str):
    return load(EXPERIMENT, [f"train_dataset.path={tmp_path}/rows.jsonl", *words])


def rows_found(loaded):
    return next(find_rows(loaded.config, SearchFolders(ROOT, ROOT)))


def row_problems(loaded, directory: RunDirectory) -> list[str]:
    host = host_at(Path(directory.path).parent)
    return [each.text() for each in other_row_problems(loaded, loaded.config, host, directory)]


@pytest.mark.parametrize("changed", [0, 1, 299, None])
def test_a_resumed_run_refuses_other_rows_unless_its_data_start_over(tmp_path, changed):
    (tmp_path / "rows.jsonl").write_text("".join(ROWS))
    loaded = with_rows(tmp_path)
    section, dataset, raw = rows_found(loaded)[1:4]
    was = check_rows(section, dataset, raw, TextTokenizer(MODEL)).digest
    directory = resumed(tmp_path, was)
    assert row_problems(loaded, directory) == []
    rows = [row.replace("=", "= ") if number == changed else row for number, row in enumerate(ROWS)]
    (tmp_path / "rows.jsonl").write_text("".join(rows if changed is not None else rows[:-1]))
    (problem,) = row_problems(loaded, directory)
    now = digest_of(section, dataset, rows_found(loaded).raw)
    assert problem.startswith(f"train_dataset: the data has changed since the checkpoint (its digest was {was} and is")
    assert f"now {now}" in problem and "set recover.skip_dataloader=true" in problem
    assert row_problems(with_rows(tmp_path, "recover.skip_dataloader=true"), directory) == []


def test_rows_of_a_task_are_made_only_where_the_task_has_changed(tmp_path):
    loaded = load(EXPERIMENT, [])
    digest = digest_of(*rows_found(loaded)[1:4])
    assert row_problems(loaded, resumed(tmp_path, digest)) == []
    (problem,) = row_problems(load(EXPERIMENT, ["+task.args.digits=3"]), resumed(tmp_path, digest))
    assert problem.startswith("train_dataset: the data has changed since the checkpoint")
    same = json.dumps({key: loaded.values[key] for key in ("task", "train_dataset")}, default=str)
    assert row_problems(loaded, resumed(tmp_path, "not compared", same)) == []


def test_another_template_is_refused_where_rows_were_measured_with_it(tmp_path):
    directory = resumed(tmp_path, before="chat_template_args: {enable_thinking: true}")
    (tmp_path / "rows.jsonl").write_text("".join(ROWS))
    unmeasured = row_problems(with_rows(tmp_path, "train_dataset.max_length=null"), directory)
    assert not any(each.startswith("chat_template_args") for each in unmeasured)
    words = ("train_dataset.max_length=20", "+chat_template_args.enable_thinking=false")
    problem = row_problems(with_rows(tmp_path, *words), directory)[0]
    assert problem.startswith("chat_template_args: is {'enable_thinking': False}, and the rows were measured with")


def test_the_page_on_runs_says_what_may_change_when_a_run_is_resumed():
    page = (ROOT / "docs" / "running.md").read_text()
    for change in CHANGES:
        assert f"| {change.keys} | {change.effect} |\n" in page
