"""`evaluator.benchmarks`: sections in the items of a list, and what is refused before a start."""

from pathlib import Path
from typing import Any

import pytest

from areal_like.config.benchmarks import every_reward
from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.rollout.settings import rollout_settings
from tests.support.planning import loaded, plan_of

BENCH = "evaluator.benchmarks"


def problems(*overrides: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        loaded("grpo", *overrides)
    return {problem.key: problem.message for problem in refused.value.problems}


def test_an_item_has_the_defaults_of_its_class_and_of_the_sections_in_it() -> None:
    (bench,) = loaded(
        "grpo", f"{BENCH}=[{{name: a, path: addition, gconfig: {{top_p: 0.9}}}}]"
    ).config.evaluator.benchmarks
    assert (bench.name, bench.num_examples, bench.n_samples) == ("a", -1, None)
    assert (bench.gconfig.top_p, bench.gconfig.temperature, bench.reward.timeout_s) == (0.9, None, None)


def test_an_evaluation_of_no_rows_is_refused() -> None:
    items = f"{BENCH}=[{{name: a, path: addition, num_examples: 0}}]"
    found = problems(items, "evaluator.num_examples=0")
    assert "valid_dataset=null evaluates none" in found["evaluator.num_examples"]
    assert "give 1 or more, -1 for all; or leave this benchmark out" in found[f"{BENCH}.0.num_examples"]


def test_references_and_nested_values_in_a_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    text = "defaults: [grpo]\nseed: 7\nevaluator:\n  benchmarks:\n"
    text += "  - name: a\n    task: {name: counting, args: {num_rows: '${seed}'}}\n    gconfig: {seed: '${seed}'}\n"
    file.write_text(text)
    (bench,) = load(file, []).config.evaluator.benchmarks
    assert (bench.task.name, bench.task.args, bench.gconfig.seed) == ("counting", {"num_rows": 7}, 7)


def test_one_key_of_an_item_is_set_by_its_index() -> None:
    items = f"{BENCH}=[{{name: a, path: addition}}, {{name: b, path: addition}}]"
    changed = loaded(
        "grpo", items, f"{BENCH}.1.n_samples=3", f"{BENCH}.1.gconfig.top_p=0.5"
    ).config.evaluator.benchmarks
    assert [(each.n_samples, each.gconfig.top_p) for each in changed] == [(None, None), (3, 0.5)]


INVALID: list[tuple[str, str, str]] = [
    ("{name: a, path: addition, gconfig: {temprature: 1}}", ".0.gconfig.temprature", "did you mean"),
    ("{name: a, path: addition, gconfig: {temperature: hot}}", ".0.gconfig.temperature", "is not a number"),
    ("{name: a, path: addition, gconfig: 3}", ".0.gconfig", "is not a mapping"),
    ("{path: addition}", ".0.name", "required"),
    ("{name: part, path: addition}", ".0.name", "other than `part`"),
    ("{name: sums.partial, path: addition}", ".0.name", "`*.partial`"),
    ("{name: a/b, path: addition}", ".0.name", "a name of at most 64"),
    ("{name: a}", ".0.path", "is empty; set a dataset here, or a task in id or task.name"),
    ("{name: a, path: addition, task: {name: counting}}", ".0.task.name", "keep one"),
    ("{name: a, path: addition, gconfig: {temperature: 0.0001}}", ".0.gconfig.temperature", "0 (greedy), or at least"),
    ("{name: a, task: {name: cuonting}}", ".0.task.name", "did you mean counting?"),
    ("{name: a, task: {name: counting, args: {rows: 3}}}", ".0.task.args.rows", "takes no such argument"),
    ("{name: a, path: addition, reward: {name: adition}}", ".0.reward.name", "did you mean addition?"),
    (
        "{name: a, path: addition}, {name: a, path: counting}",
        ".1.name",
        "is the name of evaluator.benchmarks.0",
    ),
    ("{name: a, path: addition, prompt_template: '{'}", ".0.prompt_template", "is not a template"),
    ("{name: a, path: addition, reward: {parts: [{name: exact, wieght: 2}]}}", ".0.reward.parts.0.wieght", "weight?"),
    ("{name: a, path: addition, reward: {name: model, args: {path: x}}}", ".0.reward.name", "set it there"),
    ("{name: a, path: addition, reward: {max_failed_share: 0}}", ".0.reward.max_failed_share", "no such key"),
    (
        "{name: a, path: x.jsonl, reward: {name: code, args: {timeout_s: 20}}}",
        ".0.reward.args.timeout_s",
        "must be less than reward.timeout_s=15",
    ),
]


@pytest.mark.parametrize(("items", "place", "message"), INVALID)
def test_a_wrong_benchmark_is_refused_with_its_place(items: str, place: str, message: str) -> None:
    found = problems(f"{BENCH}=[{items}]")
    assert list(found) == [f"{BENCH}{place}"]
    assert message in found[f"{BENCH}{place}"]


@pytest.mark.parametrize("experiment", ["sft", "reward_model"])
def test_supervised_training_refuses_benchmarks(experiment: str) -> None:
    (problem,) = plan_of(experiment, f"{BENCH}=[{{name: a, path: addition}}]").cannot_start
    assert (problem.key, "samples no answers" in problem.message) == (BENCH, True)


def warned_keys(*overrides: str) -> set[str]:
    return {warning.partition(": ")[0] for warning in plan_of("grpo", *overrides).warnings}


def test_a_benchmark_without_an_interval_has_no_effect() -> None:
    without = ("evaluator.freq_steps=null", "valid_dataset=null")
    assert BENCH in warned_keys(*without, f"{BENCH}=[{{name: a, path: addition}}]")
    assert BENCH not in warned_keys(*without, f"{BENCH}=[{{name: a, path: addition, freq_secs: 9}}]")
    assert "evaluator.freq_steps" not in warned_keys("valid_dataset=null", f"{BENCH}=[{{name: a, path: addition}}]")


def test_a_benchmark_has_the_limits_of_the_experiments_reward_or_its_own() -> None:
    items = "{name: a, path: r.jsonl, reward: {name: exact}}, "
    items += "{name: b, task: {name: counting}, reward: {sandbox: bubblewrap}}"
    words = ("reward.timeout_s=9", "reward.sandbox=rlimits", f"{BENCH}=[{items}, {{name: c, path: r.jsonl}}]")
    config = loaded("grpo", *words, f"{BENCH}.1.reward.timeout_s=30").config
    assert [(place, own.name, own.timeout_s, own.sandbox) for place, own in every_reward(config)] == [
        ("", config.reward.name, 9, "rlimits"),
        (f"{BENCH}.0.", "exact", 9, "rlimits"),
        (f"{BENCH}.1.", None, 30, "bubblewrap"),
    ]
    assert rollout_settings(config).lease_limit_s == config.rollout.request_timeout + 30


def test_limits_of_a_reward_that_a_benchmark_lacks_have_no_effect() -> None:
    limits = "{timeout_s: 30, sandbox: bubblewrap}"
    keys = {f"{BENCH}.0.reward.timeout_s", f"{BENCH}.0.reward.sandbox"}
    assert keys <= warned_keys(f"{BENCH}=[{{name: a, path: r.jsonl, reward: {limits}}}]")
    assert not keys & warned_keys(f"{BENCH}=[{{name: a, task: {{name: counting}}, reward: {limits}}}]")


def test_a_missing_file_and_a_name_of_the_hub_are_found_before_the_start(monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plan = plan_of("grpo", f"{BENCH}=[{{name: a, path: ./no.jsonl}}, {{name: b, path: some/where}}]")
    found = {problem.key: problem.message for problem in plan.problems}
    assert "there is no file or folder ./no.jsonl" in found[f"{BENCH}.0.path"]
    assert "HF_HUB_OFFLINE is set" in found[f"{BENCH}.1.path"]


def test_a_task_of_a_similar_name_is_suggested() -> None:
    (need,) = [each for each in plan_of("grpo", f"{BENCH}=[{{name: a, path: adition}}]").needs if BENCH in each.key]
    assert need.key == f"{BENCH}.0.path" and "adition; did you mean addition?" in need.message


def test_measuring_evaluates_nothing() -> None:
    plan = plan_of("grpo", "bench=true", f"{BENCH}=[{{name: a, path: addition, freq_steps: 1}}]")
    assert [resolved.value for resolved in plan.auto if resolved.key == BENCH] == [[]]
