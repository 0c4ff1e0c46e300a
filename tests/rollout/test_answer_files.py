"""The answers of evaluations as JSON lines."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from areal_like.process import atomic_file
from areal_like.process.errors import FinalFailure
from areal_like.process.run import ATTEMPT, Run
from areal_like.rollout.decisions import Accept, Drop, Fail
from areal_like.rollout.evaluation.answer_dataset import CARD, card, write_answers
from areal_like.rollout.evaluation.answer_files import AnswerFiles, answer_lines
from areal_like.rollout.evaluation.answer_folders import answer_bytes, answers_path, read_answers
from areal_like.rollout.evaluation.evaluation import Evaluation
from areal_like.rollout.groups import Group, Result
from tests.support.rollout_world import evaluated, facts, grpo


def grpo_run(directory: Path, *overrides: str) -> Run:
    directory.mkdir(exist_ok=True)
    return Run(directory, grpo("rollout.backend=embedded", *overrides), "grpo", "id", directory, directory)


def evaluation(name: str = "b", rows: int = 3) -> Evaluation:
    return Evaluation(
        evaluated(name=name), 7, [Group(n, 100 - n, 0, 2, 7, evaluated=evaluated(name=name)) for n in range(rows)]
    )


def done(lease: str, rewards: list[float]) -> Result:
    texts = {"prompt": "1+1=", "answers": [str(reward) for reward in rewards]}
    return Result(lease, "done", facts(7, rewards), b"", texts=texts)


def lines_of(folder: Path, name: str = "b") -> list[dict[str, Any]]:
    return read_answers(answers_path(folder, 7, name))


def test_lines_are_sorted_by_row_and_errors_have_no_score(tmp_path: Path) -> None:
    files, one = AnswerFiles(grpo_run(tmp_path)), evaluation()
    groups = one.take(3)
    failed = Result("f", "failed", error="no", error_kind="reward")
    groups[0].count_failure(failed)
    one.apply(Fail(groups[0], failed))
    files.add(one)
    assert not answers_path(files.folder, 7, "b").exists()
    one.apply(Accept(groups[1], done("a", [1.0, 0.5])))
    one.apply(Drop(groups[2], Result("d", "rejected"), "rejected"))
    files.complete(one)
    lines = lines_of(tmp_path / "evaluations")
    assert [(line["row"], line["sample"]) for line in lines] == [(98, 0), (99, 0), (99, 1), (100, 0)]
    assert lines[0] == {"row": 98, "sample": 0, "row_hash": "0" * 16, "error": "rejected by the workflow"}
    assert lines[3] == {"row": 100, "sample": 0, "row_hash": "0" * 16, "error": "reward: no"}
    assert (lines[2]["score"], lines[2]["answer"], lines[2]["prompt"]) == (0.5, "0.5", "1+1=")
    assert [path.name for path in (tmp_path / "evaluations" / "step_000007").iterdir()] == ["b.jsonl"]


def test_an_answer_of_a_conversation_has_its_messages(tmp_path: Path) -> None:
    files, one = AnswerFiles(grpo_run(tmp_path)), evaluation(rows=1)
    result, talk = done("a", [1.0, 0.5]), [{"role": "user", "content": "1+1="}]
    result.facts[0]["messages"] = talk
    one.apply(Accept(one.take(1)[0], result))
    files.complete(one)
    assert [line.get("messages") for line in lines_of(files.folder)] == [talk, None]


def test_an_evaluation_that_runs_again_replaces_its_file(tmp_path: Path) -> None:
    for reward in (0.0, 1.0):
        files, one = AnswerFiles(grpo_run(tmp_path)), evaluation("", rows=2)
        groups = one.take(2)
        one.apply(Accept(groups[0], done("a", [reward])))
        files.add(one)
        if reward:
            one.apply(Accept(groups[1], done("b", [reward])))
            files.complete(one)
    assert [line["score"] for line in lines_of(tmp_path / "evaluations", "valid")] == [1.0, 1.0]


@pytest.mark.parametrize("changed", ["b.partial.jsonl", "b.jsonl", "b.parquet", "README.md"])
@pytest.mark.parametrize("moment", ["while it is written", "once it is written"])
def test_an_attempt_that_another_one_followed_changes_no_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, moment: str
) -> None:
    start, plain = tmp_path / ATTEMPT, atomic_file.write_atomic
    run, one = grpo_run(tmp_path, "evaluator.save.as_dataset=true"), evaluation(rows=1)
    start.write_text('{"attempt": 1}')
    files, seen = AnswerFiles(run), list[dict[str, bytes]]()
    one.apply(Accept(one.take(1)[0], done("a", [1.0])))

    def take_over(*_: object) -> None:
        start.write_text('{"attempt": 2}')
        seen.append(contents(files.folder))

    def write_and_take_over(path: Path, *given: Any) -> None:
        is_last = path.name == ("step_000007.parquet" if changed == "b.parquet" else changed)
        with monkeypatch.context() as patch:
            if is_last and moment == "while it is written":
                patch.setattr("os.fsync", take_over)
            plain(path, *given)
        if is_last and moment == "once it is written":
            take_over()

    monkeypatch.setattr(atomic_file, "write_atomic", write_and_take_over)
    if (changed, moment) == ("README.md", "once it is written"):
        files.complete(one)  # nothing is left to change
    else:
        with pytest.raises(FinalFailure, match="another launcher has begun attempt 2 of this run; attempt 1 writes"):
            files.complete(one)
    assert [contents(files.folder)] == seen


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files but those that are half written."""
    return {str(path): path.read_bytes() for path in folder.rglob("*.*") if path.is_file() and path.suffix != ".half"}


def test_the_hash_of_evaluated_weights_is_not_replaced_once_another_attempt_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, run = tmp_path / ATTEMPT, grpo_run(tmp_path)
    start.write_text('{"attempt": 1}')
    files = AnswerFiles(run)
    monkeypatch.setattr("os.fsync", lambda _: start.write_text('{"attempt": 2}'))
    with pytest.raises(FinalFailure, match="another launcher has begun attempt 2"):
        files.check_model("aaaa")
    assert not contents(files.folder)


def test_an_evaluation_makes_progress_with_its_answers_alone(tmp_path: Path) -> None:
    """What a launcher that waits for the first answer counts: not rows that are handed out."""
    run, one = grpo_run(tmp_path), evaluation(rows=2)
    files, sizes = AnswerFiles(run), [answer_bytes(run)]
    groups = one.take(2)
    files.add(one)
    sizes.append(answer_bytes(run))
    for group in groups:
        one.apply(Accept(group, done("a", [1.0])))
        files.add(one)
        sizes.append(answer_bytes(run))
    files.complete(one)
    assert sizes[0] == sizes[1] == 0 < sizes[2] < sizes[3] == answer_bytes(run)


def test_answers_of_a_stopped_evaluation_are_kept_and_rows_with_errors_asked_again(tmp_path: Path) -> None:
    files = AnswerFiles(grpo_run(tmp_path))

    def begun(rows: int = 4) -> Evaluation:
        groups = [Group(n, 100 - n, 0, 2, 0, row_hash=n, evaluated=evaluated(name="b")) for n in range(rows)]
        return Evaluation(evaluated(name="b"), 0, groups)

    one = begun()
    groups = one.take(3)
    one.apply(Accept(groups[0], done("a", [1.0, 0.5])))
    one.apply(Fail(groups[1], Result("f", "failed", error="no", error_kind="server")))
    one.apply(Accept(groups[2], done("c", [0.0, 1.0])))
    files.add(one)
    path = answers_path(files.folder, 0, "b").with_suffix(".partial.jsonl")
    cut = path.read_bytes().rpartition(b'{"row":98,"sample":1')[0]
    path.write_bytes(cut)  # the last answer was not written when it was killed

    again, resumed = begun(), AnswerFiles(grpo_run(tmp_path))
    again.restore(resumed.saved(["", "b"])["b"])
    assert [group.row for group in again.take(9)] == [99, 98, 97]
    assert (again.num_rows, again.open, again.scores) == (4, 3, {0: [1.0, 0.5]})
    assert again.metrics(1.0)["eval/b/score"] == 0.75
    resumed.add(again)
    assert [(line["row"], line["score"]) for line in read_answers(path)] == [(100, 1.0), (100, 0.5)]
    rows = evaluated(name="b", key="evaluator.benchmarks.1")
    with pytest.raises(ValueError, match=r"evaluator\.benchmarks\.1: .* row 100 .* it is not evaluated"):
        Evaluation(rows, 0, begun().take(4)[1:]).restore(resumed.saved(["b"])["b"])


def test_a_resumed_evaluation_has_the_metrics_of_one_that_was_never_stopped() -> None:
    def begun() -> Evaluation:
        groups = [Group(n, n, 0, 1, 0, row_hash=n, evaluated=evaluated()) for n in range(3)]
        return Evaluation(evaluated(), 0, groups)

    def answer(group: Group) -> Result:
        result = done("a", [float(group.row == 0)])
        statistics = {"turns": 4.0 - group.row, "template_breaks": 1.0, "tool_calls": 2.0 * group.row, "tool_errors": 0}
        result.facts[0] |= {"env": "ab"[group.row // 2], "metrics": statistics}
        return result

    whole, resumed = begun(), begun()
    first = whole.waiting[-1]
    resumed.restore([orjson.loads(orjson.dumps(line)) for line in answer_lines(first, answer(first))])
    for one in (whole, resumed):
        for group in one.take(9):
            one.apply(Accept(group, answer(group)))
    assert resumed.metrics(1.0) == whole.metrics(1.0)
    assert (whole.metrics(1.0)["eval/env/a"], whole.metrics(1.0)["eval/turns_mean"]) == (0.5, 3.0)


def test_answers_of_other_weights_are_refused_with_both_hashes(tmp_path: Path) -> None:
    AnswerFiles(grpo_run(tmp_path)).check_model("aaaa")
    AnswerFiles(grpo_run(tmp_path)).check_model("aaaa")
    with pytest.raises(FinalFailure, match=r"actor.path: its weights have changed .* was aaaa and is now bbbb"):
        AnswerFiles(grpo_run(tmp_path)).check_model("bbbb")


@pytest.mark.shows("evaluator.save.disk_path")
def test_the_folder_of_the_answers_may_be_another_one(tmp_path: Path) -> None:
    words = ("experiment_name=sums", f"evaluator.save.disk_path={tmp_path / 'other'}")
    trials = [grpo_run(tmp_path / name, *words, f"trial_name={name}") for name in ("one", "two")]
    assert [AnswerFiles(run).folder for run in trials] == [tmp_path / "other/sums" / name for name in ("one", "two")]
    assert AnswerFiles(grpo_run(tmp_path / "usual")).folder == tmp_path / "usual" / "evaluations"


def test_the_answers_are_also_a_dataset_with_a_split_for_each_step(tmp_path: Path) -> None:
    """Steps whose rewards have different parts, and one without any answer, have the same columns."""
    datasets = pytest.importorskip("datasets")
    files = AnswerFiles(grpo_run(tmp_path, "evaluator.save.as_dataset=true"))
    for name, version, parts in (("b", 7, {}), ("b", 8, {"score": 0.25, "format": 1.0}), ("c", 8, {})):
        one = Evaluation(evaluated(name=name), version, [Group(0, 40, 0, 2, version, evaluated=evaluated(name=name))])
        (group,) = one.take(1)
        result = done("a", [1.0, 0.5])
        for fact in result.facts:
            fact["rewards"] = parts
        one.apply(Accept(group, result) if name == "b" else Drop(group, Result("d", "rejected"), "rejected"))
        files.complete(one)
    found = datasets.load_dataset(str(tmp_path / "evaluations/dataset"), "b", cache_dir=str(tmp_path / "cache"))
    assert set(found) == {"step_000007", "step_000008"}
    assert found["step_000008"]["answer"][:] == ["1.0", "0.5"] and found["step_000007"]["score"][:] == [1.0, 0.5]
    assert {each["name"]: each["value"] for each in found["step_000008"][0]["rewards"]} == {"score": 0.25, "format": 1}
    (rejected,) = datasets.load_dataset(
        str(tmp_path / "evaluations/dataset"), "c", split="step_000008", cache_dir=str(tmp_path / "cache")
    )
    assert (rejected["row"], rejected["score"], rejected["error"]) == (40, None, "rejected by the workflow")


def test_answers_of_any_name_that_a_benchmark_may_have_are_a_subset_that_can_be_read(tmp_path: Path) -> None:
    names = ["1.5", "1e5", "2024", "2025-01-02", "false", "null", "on", "sums"]
    folder = tmp_path / "dataset"
    for name in names:
        write_answers(folder, "step_000007", name, [{"row": 1, "sample": 0, "answer": name}])
    header = (folder / CARD).read_text()
    assert [each["config_name"] for each in yaml.safe_load(header.split("---\n")[1])["configs"]] == names
    assert "- config_name: sums\n" in header
    hard = [*card(["a: #b/'c\"\u00e9.parquet"])]
    assert yaml.safe_load("\n".join(hard[1:-2])) == {
        "configs": [
            {"config_name": "a: #b", "data_files": [{"split": "'c\"\u00e9", "path": "a: #b/'c\"\u00e9.parquet"}]}
        ]
    }
    datasets = pytest.importorskip("datasets")
    found = datasets.load_dataset(str(folder), "2024", split="step_000007", cache_dir=str(tmp_path / "cache"))
    assert found["answer"][:] == ["2024"]
