"""The evaluations of a run are pushed to an Environments Hub on this machine, by the command that a launcher runs."""

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from areal_like.process.run import open_run
from areal_like.rollout.evaluation.answer_folders import answers_folder
from areal_like.rollout.evaluation.hub_evaluation import environment_of, metrics_of, model_name, sample_of
from areal_like.rollout.evaluation.hub_push import RECORD
from launcher.runs.answer_upload import ENV_HUB, HF, upload_answers, wanted_uploads
from tests.rollout.test_answer_upload import evaluate
from tests.support.environments_hub import EnvironmentsHub, environments_hub, require_client
from tests.support.planning import loaded, plan_of
from tests.support.ring_parts import write_run

KEY = "pit_0123456789abcdef"
ON = "evaluator.save.env_hub=true"
BENCHMARKS = "evaluator.benchmarks=[{name: sums, id: owner/sums@1.0}, {name: more, path: addition}]"
MODEL = "actor.path=Qwen/Qwen3-0.6B"
COMMAND = "python -m areal_like.rollout.evaluation.hub_push --run-dir"


def run_with_answers(root: Path, *names: str) -> Path:
    """Evaluated before the first step and after step 20, with two answers to one row."""
    directory = write_run(root, ON, BENCHMARKS, MODEL)
    evaluate(directory, names)
    return directory


def pushed(directory: Path, hub: EnvironmentsHub, key: str = KEY) -> str:
    require_client()
    login = {"PRIME_API_KEY": key, "PRIME_API_BASE_URL": hub.address, "HOME": str(directory)}
    return upload_answers(ENV_HUB, directory, {**os.environ, **login})


def line(row: int, **more: Any) -> dict[str, Any]:
    one = {"row": row, "sample": 0, "row_hash": "00", "score": 1.0, "reward": 1.5, "rewards": {"score": 1.0}}
    return {**one, "finish": "stop", "tokens": 3, "weights": [7, 7], "prompt": "1+1=", "answer": "2", **more}


FAILED = {"row": 9, "sample": 0, "row_hash": "00", "error": "reward: no"}


@pytest.mark.shows("evaluator.save.env_hub")
def test_each_evaluation_of_a_run_is_pushed_with_its_answers_and_metrics_and_only_once(tmp_path: Path) -> None:
    directory = run_with_answers(tmp_path, "sums", "more")
    with environments_hub(KEY, "owner/sums", "more") as hub:
        printed = pushed(directory, hub)
        record = answers_folder(open_run(directory)) / RECORD
        where = f"their ids are in {record}"
        assert printed.endswith(f"are uploaded: 4 evaluations pushed to the Environments Hub; {where}")
        kept = orjson.loads(record.read_bytes())
        assert sorted(kept) == ["step_000000/more", "step_000000/sums", "step_000020/more", "step_000020/sums"]
        assert KEY not in printed and KEY not in record.read_text()
        last = hub.evaluations[kept["step_000020/sums"]["evaluation_id"]]
        assert last["name"] == "owner--sums--Qwen--Qwen3-0.6B" and last["model_name"] == "Qwen/Qwen3-0.6B"
        assert last["environments"] == [{"id": "id of owner/sums"}] and last["framework"] == "areal-like"
        facts = {"experiment": "grpo-addition", "trial": "t", "evaluated": "sums", "step": 20, "num_examples": 1}
        assert facts.items() <= last["metadata"].items()
        assert last["finalized"] and (last["metrics"]["score"], last["metrics"]["avg@2"]) == (1.0, 1.0)
        first = hub.evaluations[kept["step_000000/sums"]["evaluation_id"]]
        assert (first["metrics"]["score"], first["metrics"]["pass@2"], first["metadata"]["step"]) == (0.5, 1.0, 0)
        assert [(each["rollout_number"], each["reward"], each["metrics"]) for each in first["samples"]] == [
            (0, 1.0, {"part": 1.0, "score": 1.0}),
            (1, 0.0, {"part": 0.0, "score": 0.0}),
        ]
        other = hub.evaluations[kept["step_000000/more"]["evaluation_id"]]
        assert (other["name"], other["samples"][0]["task"]) == ("more--Qwen--Qwen3-0.6B", "more")

        assert f"0 evaluations pushed to the Environments Hub, 4 were there already; {where}" in pushed(directory, hub)
        assert len(hub.evaluations) == 4
        path = record.parent / "step_000020" / "sums.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"answer":"1.0"', b'"answer":"2"'))
        printed = pushed(directory, hub)
        assert "step_000020/sums is pushed anew as ev5: ev" in printed and "has other answers" in printed
        assert len(hub.evaluations) == 5


@pytest.mark.parametrize("end", ["/samples", "/finalize"])
def test_a_push_that_failed_half_way_is_told_with_its_command_and_repeated_as_another_evaluation(
    tmp_path: Path, end: str
) -> None:
    root = tmp_path / "my runs"
    root.mkdir()
    directory = run_with_answers(root, "sums")
    with environments_hub(KEY, "owner/sums") as hub:
        hub.fails = {end}
        printed = pushed(directory, hub)
        assert printed.startswith("evaluator.save.env_hub: the answers could not be uploaded (") and "503" in printed
        assert printed.endswith(f"repeat it: {COMMAND} '{directory}'") and KEY not in printed
        assert len(hub.evaluations) == 1
        hub.fails = set()
        printed = pushed(directory, hub)
        assert "2 evaluations pushed" in printed
        assert "step_000000/sums is pushed anew as ev2: ev1 was not complete" in printed
        assert [each["finalized"] for each in hub.evaluations.values()] == [False, True, True]


def test_a_broken_line_of_answers_is_named(tmp_path: Path) -> None:
    directory = run_with_answers(tmp_path, "sums")
    file = max(directory.rglob("sums.jsonl"))
    file.write_text("{\n" + file.read_text())
    with environments_hub(KEY, "owner/sums") as hub:
        assert f"{file}:1: is not a line of JSON" in pushed(directory, hub)


def test_an_environment_that_the_hub_does_not_have_leaves_out_its_own_evaluations(tmp_path: Path) -> None:
    directory = run_with_answers(tmp_path, "sums", "more")
    with environments_hub(KEY, "more") as hub:
        printed = pushed(directory, hub)
        reason = "(HTTP 404: Environment not found); push that first: prime env push); repeat it: "
        assert "sums is not pushed, as the Environments Hub has no environment owner/sums for this login" in printed
        assert reason in printed
        assert [each["metadata"]["evaluated"] for each in hub.evaluations.values()] == ["more", "more"]
        hub.environments.add("owner/sums")
        assert "2 evaluations pushed to the Environments Hub, 2 were there already" in pushed(directory, hub)


def test_a_login_that_is_refused_and_a_hub_that_cannot_be_reached_are_told_as_that(tmp_path: Path) -> None:
    directory = run_with_answers(tmp_path, "sums")
    with environments_hub(KEY, "owner/sums") as hub:
        printed = pushed(directory, hub, key="pit_of_another")
        assert "API key unauthorized. Check PRIME_API_KEY." in printed and "pit_of_another" not in printed
        assert not hub.evaluations
    assert "Request failed: ConnectError" in pushed(directory, hub)


def test_the_key_of_a_login_in_a_file_is_used_and_not_printed(tmp_path: Path) -> None:
    directory = run_with_answers(tmp_path, "sums")
    (directory / ".prime").mkdir()
    (directory / ".prime" / "config.json").write_bytes(orjson.dumps({"api_key": KEY}))
    with environments_hub(KEY, "owner/sums") as hub:
        hub.fails = {"/finalize"}
        printed = pushed(directory, hub, key="")
        assert "not now, <secret>" in printed and KEY not in printed


def test_an_error_is_a_sample_without_a_reward_and_in_no_mean() -> None:
    sample = sample_of(FAILED, "sums")
    assert sample["error"] == "reward: no" and not {"reward", "score"} & sample.keys()
    assert (sample["example_id"], sample["prompt"], sample["completion"]) == (9, [], [])
    no_reward = sample_of(line(1, error="no reward", reward=None, rewards={}), "sums")
    assert (no_reward["error"], no_reward["completion"]) == (
        "no reward",
        [{"role": "assistant", "content": "2"}],
    ) and "reward" not in no_reward
    lines = [line(1), line(2, score=0.0, reward=0.5), FAILED]
    measured = metrics_of(lines, max_failed_share=0.5)
    assert (measured["score"], measured["avg@1"], measured["reward"]) == (0.5, 0.5, 1.0)
    assert (measured["rows"], measured["rows_without_result"]) == (3, 1)
    assert not {"score", "avg@1", "reward"} & metrics_of(lines, max_failed_share=0.1).keys()


def test_a_conversation_is_a_sample_with_its_messages_from_the_first_of_the_model_on() -> None:
    talk = [{"role": role, "content": role} for role in ("system", "user", "assistant", "tool", "assistant")]
    sample = sample_of(line(1, messages=talk, env="wordle"), "games")
    assert (sample["prompt"], sample["completion"], sample["task"]) == (talk[:2], talk[2:], "wordle")


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        ((BENCHMARKS,), "sums", {"slug": "owner/sums"}),
        ((BENCHMARKS,), "more", {"name": "more"}),
        (("evaluator.benchmarks=[{name: a, id: 'verifiers:wordle'}]",), "a", {"name": "wordle"}),
        (("evaluator.benchmarks=[{name: chains, id: 'reasoning_gym:chain_sum'}]",), "chains", {"name": "chains"}),
        ((), "valid", {"name": "grpo-addition"}),
        ((), "of_an_earlier_configuration", {"name": "of_an_earlier_configuration"}),
    ],
)
def test_what_was_evaluated_is_an_environment_of_its_id_else_of_its_name(
    words: tuple[str, ...], name: str, expected: dict[str, str]
) -> None:
    assert environment_of(loaded("grpo", *words).config, name) == expected


def test_a_model_in_a_folder_has_its_last_part_as_name() -> None:
    names = {"Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B", "/home/me/models/mine": "mine", "./mine": "mine"}
    names |= {"builtin:smollm2-135m": "builtin:smollm2-135m"}
    assert {path: model_name(loaded("grpo", f"actor.path={path}").config) for path in names} == names


def test_a_start_without_a_login_or_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_client()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    (problem,) = plan_of("grpo", ON).problems
    assert problem.key == "evaluator.save.env_hub"
    assert "set PRIME_API_KEY" in problem.message and "`prime login`" in problem.message
    (tmp_path / ".prime").mkdir()
    for content in ("{", "[]", "{}", '{"api_key": ""}'):
        (tmp_path / ".prime" / "config.json").write_text(content)
        assert plan_of("grpo", ON).problems == (problem,)
    (tmp_path / ".prime" / "config.json").write_text('{"api_key": "k"}')
    assert plan_of("grpo", ON).problems == ()
    (tmp_path / ".prime" / "config.json").unlink()
    monkeypatch.setenv("PRIME_API_KEY", KEY)
    assert plan_of("grpo", ON).problems == ()
    monkeypatch.setattr("launcher.checks.missing.find_spec", lambda name: None)
    (problem,) = plan_of("grpo", ON).problems
    assert problem.key == "evaluator.save.env_hub" and "pip install" in problem.message
    assert "prime-evals" in problem.message


def test_a_run_uploads_to_every_place_that_its_configuration_names() -> None:
    hf = "evaluator.save.hf.private=true"
    assert wanted_uploads(loaded("grpo").config) == []
    assert wanted_uploads(loaded("grpo", hf).config) == [HF]
    assert wanted_uploads(loaded("grpo", hf, ON).config) == [HF, ENV_HUB]
