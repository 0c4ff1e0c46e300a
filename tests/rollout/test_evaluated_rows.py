"""What is evaluated by the configuration, and how its answers are sampled."""

from typing import Any

import pytest

from areal_like.rollout.evaluation.evaluated_rows import EvaluatedRows
from areal_like.rollout.settings import rollout_settings
from tests.support.rollout_world import grpo


def rows_of(*overrides: str) -> dict[str, EvaluatedRows]:
    return {each.name: each for each in rollout_settings(grpo(*overrides)).evaluated}


def benchmark(**values: Any) -> str:
    keys = "".join(f", {name}: {value}" for name, value in values.items())
    return f"evaluator.benchmarks=[{{name: b, path: addition{keys}}}]"


def test_messages_name_the_section_of_the_rows() -> None:
    assert {name: each.key for name, each in rows_of(benchmark(freq_steps=1)).items()} == {
        "": "valid_dataset",
        "b": "evaluator.benchmarks.0",
    }


@pytest.mark.shows("evaluator.gconfig.greedy")
def test_evaluation_is_greedy_for_a_single_answer_unless_a_key_says_how_to_sample() -> None:
    assert rows_of("evaluator.n_samples=1")[""].sampling["greedy"] is True
    assert rows_of("evaluator.n_samples=4")[""].sampling["greedy"] is False
    assert rows_of("evaluator.n_samples=4", "evaluator.gconfig.greedy=true")[""].sampling["greedy"] is True
    for key in ("temperature=0.6", "top_p=0.9", "top_k=5", "min_p=0.1"):
        assert rows_of(f"evaluator.gconfig.{key}")[""].sampling["greedy"] is False
        assert rows_of("gconfig.greedy=true", f"evaluator.gconfig.{key}")[""].sampling["greedy"] is False
    assert rows_of("evaluator.gconfig.temperature=0")[""].sampling["greedy"] is True


SAMPLING = [
    ("temperature", 0.75),
    ("repetition_penalty", 1.5),
    ("top_p", 0.5),
    ("top_k", 7),
    ("min_p", 0.25),
    ("max_new_tokens", 3),
    ("min_new_tokens", 1),
    ("max_tokens", 40),
    ("greedy", False),
]


@pytest.mark.shows("evaluator.gconfig.{name}")
@pytest.mark.parametrize(("name", "value"), SAMPLING)
def test_a_key_of_the_evaluator_is_for_all_rows_and_one_of_a_benchmark_for_its_own(name: str, value: Any) -> None:
    found = rows_of(f"evaluator.gconfig.{name}={value}", "evaluator.n_samples=2", benchmark())
    assert found[""].sampling[name] == found["b"].sampling[name] == value
    other = rows_of(benchmark(gconfig=f"{{{name}: {value}}}"), "gconfig.greedy=true")
    assert other["b"].sampling[name] == value != other[""].sampling.get(name)
    assert rollout_settings(grpo(f"evaluator.gconfig.{name}={value}")).sampling == rollout_settings(grpo()).sampling


@pytest.mark.parametrize("key", ["temperature: 0.6", "top_p: 0.9", "top_k: 5", "min_p: 0.1"])
def test_a_benchmark_that_says_how_to_sample_is_not_greedy_because_the_evaluator_is(key: str) -> None:
    found = rows_of("evaluator.gconfig.greedy=true", benchmark(n_samples=4, gconfig=f"{{{key}}}"))
    assert (found[""].sampling["greedy"], found["b"].sampling["greedy"]) == (True, False)
    both = rows_of("evaluator.gconfig.temperature=0.6", benchmark(gconfig=f"{{greedy: true, {key}}}"))
    assert both["b"].sampling["greedy"] is True


@pytest.mark.shows("evaluator.benchmarks[].gconfig.reasoning_effort")
def test_the_effort_of_a_benchmark_is_its_own_and_training_has_none() -> None:
    found = rows_of("evaluator.gconfig.reasoning_effort=low", benchmark(gconfig="{reasoning_effort: high}"))
    assert [found[name].sampling["reasoning_effort"] for name in ("", "b")] == ["low", "high"]
    assert found[""].sampling["greedy"] is True
    assert "reasoning_effort" not in rows_of()[""].sampling
    assert "reasoning_effort" not in rollout_settings(grpo("evaluator.gconfig.reasoning_effort=low")).sampling


@pytest.mark.shows("evaluator.gconfig.stop", "evaluator.gconfig.seed")
def test_stop_texts_and_the_seed_of_an_evaluation_are_its_own() -> None:
    found = rows_of("evaluator.gconfig.stop=[a]", "evaluator.gconfig.seed=5", benchmark(gconfig="{seed: 6, stop: [b]}"))
    assert (found[""].sampling["stop"], found[""].sampling_seed) == (["a"], 5)
    assert (found["b"].sampling["stop"], found["b"].sampling_seed) == (["b"], 6)
    assert rows_of("seed=9")[""].sampling_seed == rows_of("gconfig.seed=9")[""].sampling_seed == 9


@pytest.mark.shows("evaluator.num_examples", "evaluator.n_samples")
@pytest.mark.shows("evaluator.benchmarks[].num_examples", "evaluator.benchmarks[].n_samples")
def test_numbers_of_rows_and_answers_are_those_of_the_benchmark_or_of_the_evaluator() -> None:
    found = rows_of("evaluator.num_examples=9", "evaluator.n_samples=2", benchmark())
    assert (found[""].num_examples, found[""].n_samples) == (9, 2)
    assert (found["b"].num_examples, found["b"].n_samples) == (-1, 2)
    own = rows_of(benchmark(num_examples=3, n_samples=8))["b"]
    assert (own.num_examples, own.n_samples, own.concurrent) == (3, 8, rollout_settings(grpo()).max_concurrent)


@pytest.mark.shows("evaluator.benchmarks[].freq_steps")
def test_a_benchmark_has_the_interval_of_the_evaluator_or_its_own() -> None:
    assert rows_of("evaluator.freq_steps=4", benchmark())["b"].clock.freq_steps == 4
    own = rows_of("evaluator.freq_steps=4", benchmark(freq_epochs=2))["b"].clock
    assert (own.freq_steps, own.freq_epochs, own.freq_secs) == (None, 2, None)
    assert list(rows_of("evaluator.freq_steps=null", benchmark(freq_steps=1))) == ["b"]
    assert rows_of("evaluator.freq_steps=null", benchmark()) == {}
