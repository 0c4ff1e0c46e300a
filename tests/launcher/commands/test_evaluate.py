"""`eval`: tables and comparisons from saved answers, and what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.rollout.evaluation.answer_folders import SavedEvaluation
from launcher.arguments import parse_arguments
from launcher.cli import main
from launcher.commands.compare_models import SIDES, _side
from launcher.commands.evaluate import model_evaluation
from launcher.runs.named_run import last_value
from launcher.runs.score_tables import comparison, score_table
from tests.support.planning import plan_of

ADDRESS = "rollout.server_addresses[0]"


def saved(folder: Path, share: float = 1.0, **answers: Sequence[Sequence[float | None]]) -> SavedEvaluation:
    """A folder of answers: name -> the scores of each row's answers; None is an error. `share` of the rows may fail."""
    folder.mkdir(parents=True)
    for name, rows in answers.items():
        lines: list[dict[str, Any]] = []
        for row, scores in enumerate(rows):
            for sample, score in enumerate(scores):
                fact = {"error": "no"} if score is None else {"score": score}
                lines.append({"row": row, "sample": sample, "row_hash": f"h{row}", **fact})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return SavedEvaluation(folder, share)


def cells(lines: list[str], name: str) -> list[str]:
    return next(line.split() for line in lines if line.startswith(f"{name} "))


def test_a_table_has_a_line_for_each_evaluation_and_keeps_errors_apart(tmp_path: Path) -> None:
    evaluation = saved(tmp_path / "a", sums=[[1.0, 0.0], [1.0, 1.0], [None]], valid=[[0.0]])
    (evaluation.folder / "sums.partial.jsonl").write_text("{}\n")
    lines = score_table(evaluation)
    assert cells(lines, "sums")[:4] == ["sums", "2", "1", "0.750"] and "pass@2 1.000" in "\n".join(lines)
    assert cells(lines, "valid")[:4] == ["valid", "1", "0", "0.000"]
    assert len(lines) == 5 and "best of its answers" in lines[2]


def test_a_table_of_single_answers_has_no_column_for_the_best_of_several(tmp_path: Path) -> None:
    lines = score_table(saved(tmp_path / "a", sums=[[1.0], [0.0], [None]]))
    assert lines[2].split() == ["rows", "errors", "score", "95%", "band"]
    assert cells(lines, "sums")[:4] == ["sums", "2", "1", "0.500"]


def test_two_evaluations_are_compared_on_the_rows_that_both_answered(tmp_path: Path) -> None:
    first = saved(tmp_path / "a", sums=[[0.0]] * 20 + [[None]], other=[[1.0]])
    second = saved(tmp_path / "b", sums=[[1.0]] * 15 + [[0.0]] * 5 + [[1.0]])
    lines = comparison(first, second)
    found = cells(lines, "sums")
    assert found[:5] == ["sums", "20", "0.000", "0.750", "+0.750"]
    assert "the second is better" in "\n".join(lines) and "other" not in "\n".join(lines)
    assert lines[-1] == "sums: 1 rows are in one of the two only, or failed there, and are left out"
    assert "no real difference" in "\n".join(comparison(first, first))


def test_evaluations_without_anything_in_common_are_refused(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "a", sums=[[1.0]]), saved(tmp_path / "b", other=[[1.0]])
    with pytest.raises(ConfigError, match="nothing in common"):
        comparison(first, second)
    third = saved(tmp_path / "c", sums=[[None], [1.0]])
    assert "no row in common" in "\n".join(comparison(first, third))


WHY = "sums: no score, as 2 of 4 rows failed or were rejected by the workflow (50%, evaluator.max_failed_share allows"


def test_above_the_share_of_failed_rows_there_is_no_score_and_no_verdict(tmp_path: Path) -> None:
    rows: list[list[float | None]] = [[1.0], [0.0], [None], [None]]
    few, many = saved(tmp_path / "a", 0.5, sums=rows), saved(tmp_path / "b", 0.4, sums=rows, valid=[[1.0]])
    assert cells(score_table(few), "sums")[:4] == ["sums", "2", "2", "0.500"]
    lines = score_table(many)
    assert cells(lines, "sums") == ["sums", "2", "2", "none"] and cells(lines, "valid")[3] == "1.000"
    assert lines[-1] == f"{WHY} 40%)"
    for sides, verdict in (((few, many), "the second has no score"), ((many, many), "neither has a score")):
        compared = comparison(*sides)
        assert cells(compared, "sums") == ["sums", "2", *verdict.split()]
        assert compared[-1] == f"the second: {WHY} 40%)"
    assert cells(comparison(few, few), "sums")[-3:] == ["no", "real", "difference"]


@pytest.mark.parametrize("broken", ['{"row": 1, "row', "[1]", "{}"])
def test_a_broken_line_of_answers_is_named(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = run_with(tmp_path, "a", 2) / "evaluations" / "step_000002" / "valid.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], broken, *lines[3:]]) + "\n")
    for words in (["eval", "sums/a"], ["eval", "sums/a", "with=sums/a"], ["rewards", "sums/a", "--reward", "exact"]):
        assert main(words) == 2
        assert f"{file}:4: is not " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ([], []),
        (["seed=7", "actor.lr=1e-3", "gconfig.temperature=0.7"], []),  # an answer for each row is greedy
        (["evaluator.gconfig.temperature=0.7"], ["greedy is True", "temperature is not set", "0.7 in the second"]),
        (["evaluator.n_samples=4"], ["n_samples is 1 in the first and 4", "greedy is True", "temperature is not set"]),
        (["reward.name=format"], ["reward.name is addition in the first and format in the second"]),
        (["task.args.digits=3"], ["task.args.digits is not set in the first and 3 in the second"]),
        (["evaluator.gconfig.max_new_tokens=7"], ["max_new_tokens is 6 in the first and 7 in the second"]),
        (["+chat_template_args.enable_thinking=false"], ["chat_template_args.enable_thinking is not set"]),
    ],
)
def test_a_comparison_names_what_differs_besides_the_model(
    overrides: list[str], lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    run_with(tmp_path, "a", 2), run_with(tmp_path, "b", 4, overrides=overrides)
    assert main(["eval", "sums/a", "with=sums/b"]) == 0
    notes = capsys.readouterr().out.split("verdict\n")[1].splitlines()[1:]
    assert all(note.startswith("valid: ") for note in notes) and bool(notes) is bool(lines)
    assert all(line in "\n".join(notes) for line in lines), notes


def run_with(root: Path, trial: str, *steps: int, overrides: Sequence[str] = ()) -> Path:
    """A run with a checkpoint and an evaluation of each of these steps; of N rows N answers are right."""
    run = root / "runs" / "sums" / trial
    for step in steps:
        folder = run / "checkpoints" / f"step_{step:06d}"
        folder.mkdir(parents=True)
        for file in (".complete", "config.json"):
            (folder / file).touch()
        saved(run / "evaluations" / f"step_{step:06d}", valid=[[float(row < step)] for row in range(9)])
    loaded = load("grpo.yaml", ["experiment_name=sums", f"trial_name={trial}", *overrides])
    (run / "config.yaml").write_text(yaml.safe_dump(loaded.values))
    facts = {"experiment": "grpo", "run_id": "id", "folder": str(root), "cwd": str(root)}
    (run / "run.json").write_text(json.dumps(facts))
    return run


def test_two_steps_of_one_run_are_compared_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_with(tmp_path, "a", 2, 8)
    run_with(tmp_path, "b@3", 4)

    def means(*words: str) -> list[str]:
        assert main(["eval", "sums/a", *words]) == 0
        return cells(capsys.readouterr().out.splitlines(), "valid")[2:4]

    assert means("step=2", "with=sums/a@8") == ["0.222", "0.889"]
    assert means("step=2", "with=sums/a") == ["0.222", "0.889"], "step= is of the first"
    assert means("with=sums/b@3") == ["0.889", "0.444"], "a run may have such a name"
    assert main(["eval", "sums/a", "with=sums/a@7"]) == 2
    assert "with=sums/a@7: there is no evaluation of this step in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "models"),
    [
        (["step=2", "with=builtin:tiny-addition"], ["step_000002", "builtin:tiny-addition"]),
        (["step=2", "with=sums/a@8"], ["step_000002", "step_000008"]),
        (["with=sums/a@2"], ["step_000008", "step_000002"]),
    ],
)
def test_a_checkpoint_is_compared_with_its_base_model_or_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], models: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_with(tmp_path, "a", 2, 8)
    arguments = parse_arguments(["eval", "sums/a", *words, "--config", "grpo.yaml"])
    sides = [model_evaluation(_side(arguments, side)).overrides for side in SIDES]
    paths = [last_value(each, "actor.path=") or "" for each in sides]
    assert [path.rpartition("/")[2] for path in paths] == models
    assert not any(word.startswith(("step=", "with=")) for each in sides for word in each)


def refusals(experiment: str, *overrides: str) -> dict[str, str]:
    return {problem.key: problem.message for problem in plan_of(experiment, *overrides).cannot_start}


def test_an_evaluation_has_servers_and_rewards_and_no_trainer() -> None:
    plan = plan_of("grpo", "total_train_steps=0", "train_dataset.batch_size=100000")
    assert list(dict.fromkeys(each.role for each in plan.processes)) == [
        "guardian",
        "launcher",
        "server",
        "rollout",
        "episodes",
    ]
    assert plan.problems == () and plan.memory.trainer == ()
    assert plan.batch.words == ("valid_dataset: at most 500 rows, 1 answer each",)
    assert {each.key: each.value for each in plan.auto}["allocation_mode"] == "embedded:d1+eval"


@pytest.mark.shows("allocation_mode")
def test_an_allocation_without_trainer_only_evaluates() -> None:
    plan = plan_of("grpo", "allocation_mode=embedded:d1+eval", "evaluator.freq_steps=null", "actor.backend=fsdp")
    assert {each.key: each.value for each in plan.auto}["total_train_steps"] == 0
    assert plan.problems == () and "trainer" not in {each.role for each in plan.processes}
    problems = refusals("grpo", "allocation_mode=embedded:d1+eval", "valid_dataset=null")
    assert "has no trainer" in problems["allocation_mode"]


@pytest.mark.shows("rollout.server_type", "rollout.server_addresses")
def test_a_service_is_evaluated_without_a_server_or_a_model() -> None:
    service = ("total_train_steps=0", "rollout.server_type=openai", "actor.path=some-model")
    plan = plan_of("grpo", *service, "rollout.server_addresses=['https://api.example.com/v1']")
    assert {each.role for each in plan.processes} == {"guardian", "launcher", "rollout", "episodes"}
    assert plan.cannot_start == () and {each.key for each in plan.needs} <= {"rollout.api_key_var"}
    address = "rollout.server_addresses=['http://h/v1']"
    assert "use single_turn" in refusals("grpo", *service, address, "workflow.name=multi_turn")["workflow.name"]
    plan = plan_of("grpo", *service)
    (empty,) = plan.cannot_start
    reason = "is empty, and server_type=openai asks a service; give its URL"
    assert (empty.key, empty.message) == ("rollout.server_addresses", reason)
    assert not [each for each in plan.warnings if each.startswith(("rollout.server", "actor.path"))]
    for address, reason in (("h:1", "with http or https"), ("https://me:x@h/v1", "contains credentials")):
        assert reason in refusals("grpo", *service, f"rollout.server_addresses=['{address}']")[ADDRESS]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("org/model", "org/model"),
        ("builtin:tiny-addition", "builtin:tiny-addition"),
        ("it's", r"'it\'s'"),
        ("null", "'null'"),
        ("a b", "'a b'"),
    ],
)
def test_the_name_of_a_model_is_quoted_only_where_it_must_be(name: str, word: str) -> None:
    overrides = model_evaluation(parse_arguments(["eval", name, "--config", "grpo.yaml"])).overrides
    assert overrides[0] == f"actor.path={word}"
    assert load("grpo.yaml", overrides).config.actor.path == name


@pytest.mark.parametrize("name", ["run", "folder", "name"])
def test_the_model_to_evaluate_is_a_run_a_folder_or_a_name(tmp_path: Path, name: str) -> None:
    run = tmp_path / "runs" / "sums" / "r0001"
    for step in (1, 2):
        folder = run / "checkpoints" / f"step_{step:06d}"
        folder.mkdir(parents=True)
        for file in (".complete", "config.json"):
            (folder / file).touch()
    (run / "config.yaml").touch()
    newest = run / "checkpoints" / "step_000002"
    word, path = {"run": (run, newest), "folder": (newest, newest), "name": ("Qwen/Qwen3-0.6B",) * 2}[name]
    arguments = model_evaluation(parse_arguments(["eval", str(word), "--config", "grpo.yaml", "seed=2"]))
    assert arguments.overrides == ["seed=2", f"actor.path={path}", "total_train_steps=0"]
    if name == "run":
        arguments = model_evaluation(parse_arguments(["eval", str(run), "--config", "grpo.yaml", "step=1"]))
        assert "step_000001" in arguments.overrides[0]
        with pytest.raises(ConfigError, match="no complete checkpoint of this step"):
            model_evaluation(parse_arguments(["eval", str(run), "--config", "grpo.yaml", "step=7"]))


def test_without_steps_there_must_be_an_evaluation_of_answers() -> None:
    assert refusals("grpo", "total_train_steps=0") == {}
    assert "nothing is evaluated" in refusals("grpo", "total_train_steps=0", "valid_dataset=null")["total_train_steps"]
    benchmark = "evaluator.benchmarks=[{name: a, path: addition, freq_steps: 1}]"
    assert refusals("grpo", "total_train_steps=0", "valid_dataset=null", benchmark) == {}
    assert "no answers are sampled here" in refusals("sft", "total_train_steps=0")["total_train_steps"]


def test_two_models_are_both_checked_and_planned_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "builtin:tiny-addition", "with=builtin:tiny-programs", "--config", "grpo.yaml"]
    assert main([*words, "trial_name=t", "--dry-run=json"]) == 0
    plans = [json.loads(each) for each in split_json(capsys.readouterr().out)]
    assert [Path(each["run_dir"]).name for each in plans] == ["t-first", "t-second"]
    assert main([*words, "actor.dtype=nonsense"]) == 2
    assert main([*words, "--explain", "actor.path"]) == 2 and "of one configuration" in capsys.readouterr().err


def test_the_plans_of_a_comparison_name_the_command_that_starts_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "builtin:tiny-addition", "with=builtin:tiny-programs", "--config", "grpo.yaml"]
    assert main([*words, "--dry-run"]) == 0
    started = [line.split(":", 1)[1].split() for line in capsys.readouterr().out.splitlines() if "start it:" in line]
    assert len(started) == 2 and started[0] == started[1]
    assert sorted(started[0]) == sorted(["python", "-m", "launcher", *words])


def test_a_built_in_model_that_does_not_exist_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    meant = "did you mean builtin:tiny-addition?"
    assert any(meant in each.message for each in plan_of("grpo", "actor.path=builtin:tiny-adition").needs)
    assert main(["eval", "builtin:tiny-adition"]) == 2 and meant in capsys.readouterr().err
    assert main(["eval", "builtin:tiny-addition"]) == 2 and "--config FILE" in capsys.readouterr().err


def split_json(text: str) -> list[str]:
    return [each for each in text.replace("\n}\n{", "\n}\x00{").split("\x00") if each.strip()]


def test_it_is_for_experiments_that_generate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--config", "sft.yaml", "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith("eval: is for experiments that generate, not for sft")
