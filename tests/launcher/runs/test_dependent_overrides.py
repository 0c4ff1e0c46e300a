"""Keys that repeat another key follow it when a run is resumed with another value."""

import json

import pytest

from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from launcher.runs.dependent_overrides import dependent_overrides, recorded_references, whole_references
from launcher.runs.resume import allocation_override
from launcher.runs.run_files import config_text
from tests.support.planning import load_text, loaded, plan_of

FOLLOWS = {"actor.temperature": "gconfig.temperature", "ref.temperature": "actor.temperature"}


def test_keys_that_repeat_the_value_of_another_are_found():
    tree = {"a": {"b": "${c.d}", "e": "x-${c.d}", "f": [1]}, "c": {"d": 1}, "g": "${temperature}"}
    assert dict(whole_references(tree)) == {"a.b": "c.d", "g": "gconfig.temperature"}


def test_dependent_keys_follow_a_changed_key_transitively():
    values = {"gconfig": {"temperature": 0.5}, "actor": {"temperature": 0.5}, "ref": {"temperature": 0.5}}
    for name in ("temperature", "gconfig.temperature"):
        assert dependent_overrides(values, FOLLOWS, [f"{name}=0.9"]) == [
            "actor.temperature=${gconfig.temperature}",
            "ref.temperature=${actor.temperature}",
        ]
    assert dependent_overrides(values, FOLLOWS, ["seed=2"]) == []


def test_a_key_with_an_independent_value_keeps_it():
    values = {"gconfig": {"temperature": 0.5}, "actor": {"temperature": 0.7}}
    assert dependent_overrides(values, FOLLOWS, ["gconfig.temperature=0.9"]) == []
    values["actor"]["temperature"] = 0.5
    assert dependent_overrides(values, FOLLOWS, ["gconfig.temperature=0.9", "actor.temperature=0.8"]) == []


def test_allocation_mode_becomes_auto_when_a_backend_changes():
    assert allocation_override(["seed=2"]) == []
    assert allocation_override(["seed=2", "model.backend=fsdp:d1"]) == ["allocation_mode=auto"]
    assert allocation_override(["actor.backend=fsdp:d1", "allocation_mode=embedded:d1+fsdp:d1"]) == []


@pytest.mark.parametrize("place", ["run", "copy", "run of before"])
def test_the_file_of_a_run_starts_a_similar_run_with_overrides(tmp_path, place):
    """Its own file says each fact and its copies: in a run's directory all copies follow, in any other file those that
    must agree."""
    first = loaded("grpo", "trial_name=first")
    run = tmp_path / "runs" / "grpo-addition" / "first"
    run.mkdir(parents=True)
    facts = {"follows": dict(whole_references(first.raw))} if place == "run" else {}
    if place != "copy":
        (run / "run.json").write_text(json.dumps(facts), "utf-8")
    file = run / "config.yaml"
    file.write_text(config_text(first, plan_of("grpo", "trial_name=first")), "utf-8")
    words = ["trial_name=auto", "experiment_name=mine", "gconfig.n_samples=2", "fileroot=/elsewhere"]
    again = load(file, words, dependents=recorded_references(file))
    assert again.config.actor.trial_name == again.config.saver.trial_name == "auto"
    assert again.config.rollout.experiment_name == "mine" and again.config.actor.group_size == 2
    assert again.config.saver.fileroot == ("/elsewhere" if place == "run" else "./runs")
    assert load(file, dependents=recorded_references(file)).config.actor.trial_name == "first"


def test_a_copied_key_with_another_value_is_a_contradiction():
    with pytest.raises(ConfigError, match=r"actor\.trial_name .*must agree"):
        load_text("experiment_name: a\ntrial_name: b\nactor: {trial_name: c}\n", "trial_name=d")
