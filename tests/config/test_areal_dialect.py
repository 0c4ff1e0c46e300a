"""AReaL's dialect: experiment kinds, dropped keys and foreign sections, without composing a configuration."""

import re
from typing import Any, ClassVar

import pytest

from areal_like.config.checks.registry import run_checks
from areal_like.config.dialects.areal import (
    CHECKS,
    FOREIGN_SECTIONS,
    NEWER_KEYS,
    infer_experiment,
    legacy_file_message,
    other_version_hint,
    subclass_keys,
)
from areal_like.config.engines import engines
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.problems import ConfigError, Stage
from areal_like.config.schema import Schema
from tests.support.planning import load_text


class TestInference:
    @pytest.mark.parametrize(
        ("body", "experiment"),
        [
            ({"actor": {}, "critic": {}}, "ppo"),
            ({"actor": {"path": "x"}}, "grpo"),
            ({"actor": {}, "critic": None}, "grpo"),
            ({"model": {}}, "sft"),
            ({"model": {}, "train_dataset": {"type": "sft"}}, "sft"),
            ({"model": {}, "train_dataset": {"type": "rw"}}, "reward_model"),
            ({"model": {}, "train_dataset": None}, "sft"),
            ({"model": {}, "train_dataset": "nonsense"}, "sft"),
            ({"train_dataset": {"type": "rw"}}, "reward_model"),
            ({"experiment_name": "x"}, "grpo"),
            ({}, "grpo"),
        ],
    )
    def test_the_kind_of_a_file_follows_from_its_sections(self, body, experiment):
        assert infer_experiment(body) == experiment


class TestDroppedKeys:
    @pytest.mark.parametrize(
        ("text", "key", "instead"),
        [
            ("actor: {group_adv_norm: true}", "actor.group_adv_norm", "actor.adv_norm.mean_level=group"),
            ("actor: {group_reward_norm: true}", "actor.group_reward_norm", "actor.reward_norm.mean_level=group"),
            ("server_only: false", "server_only", "launcher serve"),
        ],
    )
    def test_a_key_that_areal_has_dropped_names_its_replacement(self, text, key, instead):
        with pytest.raises(ConfigError) as refused:
            load_text(f"experiment_name: x\n{text}\n")
        (problem,) = (problem for problem in refused.value.problems if problem.key == key)
        assert "removed from AReaL before v0.3.4" in problem.message and instead in problem.message
        assert "--schema" not in problem.message

    def test_the_replacements_of_dropped_keys_exist(self):
        words = [f"actor.{norm}.{level}=group" for norm in NORMS for level in ("mean_level", "std_level")]
        assert load_text("experiment_name: x\n", *words).config.actor.adv_norm.std_level == "group"


NORMS = ("adv_norm", "reward_norm")


class TestNewerKeys:
    @pytest.mark.parametrize(
        ("text", "key", "remedy"),
        [
            ("enable_offload: false", "enable_offload", "leave it out"),
            ("scheduler: {type: local}", "scheduler.type", "cluster.type"),
            ("perf_tracer: {enabled: false, fileroot: /x}", "perf_tracer", "profiler"),
            ("rollout: {fileroot: /x}", "rollout.fileroot", "cluster.fileroot"),
            ("rollout: {tokenizer_path: x}", "rollout.tokenizer_path", "tokenizer_path is for all processes"),
            ("rollout: {return_routed_experts: true}", "rollout.return_routed_experts", "leave it out"),
            ("rollout: {scheduling_spec: [{gpu: 1}]}", "rollout.scheduling_spec", "leave it out"),
            ("actor: {scheduling_spec: [{gpu: 1}]}", "actor.scheduling_spec", "leave it out"),
            ("ref: {scheduling_strategy: {type: colocation}}", "ref.scheduling_strategy", "leave it out"),
            ("valid_dataset: {dataset_kwargs: {a: 1}}", "valid_dataset.dataset_kwargs", "leave it out"),
            ("actor: {mb_spec: {packing_algorithm: kk}}", "actor.mb_spec.packing_algorithm", "leave it out"),
        ],
    )
    def test_a_key_of_a_newer_areal_is_recognised(self, text, key, remedy):
        with pytest.raises(ConfigError) as refused:
            load_text(f"experiment_name: x\n{text}\n")
        (problem,) = (problem for problem in refused.value.problems if problem.key == key)
        assert "a key of a newer AReaL than v0.3.4; " in problem.message and remedy in problem.message
        assert "did you mean" not in problem.message and "--schema" not in problem.message

    def test_keys_of_a_newer_areal_are_recognized_on_the_command_line(self):
        with pytest.raises(ConfigError, match=r"perf_tracer\.enabled.*newer AReaL"):
            load_text("experiment_name: x\n", "perf_tracer.enabled=true")

    def test_no_entry_of_the_table_hides_a_current_key_or_section(self):
        ours = {name for cls in EXPERIMENTS.values() for name in [*Schema.of(cls).names(), *Schema.of(cls).sections]}
        assert [name for name in ours if other_version_hint(name)] == []

    def test_remedies_name_only_keys_that_exist_here(self):
        schemas = [Schema.of(cls) for cls in EXPERIMENTS.values()]
        keys, sections = ({name for s in schemas for name in part(s)} for part in (Schema.names, lambda s: s.sections))
        remedies = " ".join([*NEWER_KEYS.values(), *(remedy for keys in engines() for remedy in keys.newer.values())])
        named = set(re.findall(r"[a-z]+[._][a-z._]+", remedies.replace(". ", " ")))
        assert {"actor.ratio.level", "tokenizer_path"} <= named <= keys
        assert set(re.findall(r"the section ([a-z_.]+)", remedies)) <= sections


class TestLegacy:
    @pytest.mark.parametrize(
        "body",
        [
            {"mode": "fast", "experiment_name": "x"},
            {"actor": {"type": "adam"}},
            {"dataset": {"path": "x"}, "group_size": 4},
            {"wandb": {"mode": "online"}},
            {},
        ],
    )
    def test_a_mistake_in_a_current_file_does_not_make_it_a_legacy_file(self, body):
        assert legacy_file_message(body) is None

    def test_a_value_model_leads_to_ppo(self):
        assert "experiments/ppo.yaml" in str(legacy_file_message({"exp_ctrl": {}, "ppo": {"disable_value": False}}))


def keys_against(values: dict[str, Any], foreign: tuple[str, ...] | list[str] = ()) -> list[str]:
    facts = {"values": values, "cls": EXPERIMENTS["grpo"], "foreign": foreign}
    return [problem.key for problem in run_checks(CHECKS, facts, Stage.CANNOT_START)]


class TestCannotStart:
    """The reasons on their own, from values as they are after composition."""

    rl: ClassVar[dict[str, Any]] = {
        "rollout": {},
        "actor": {"path": "m"},
        "train_dataset": {"path": "rows.jsonl"},
        "task": {"name": None},
        "workflow": {"name": None},
        "reward": {"name": "mine:score"},
        "environments": {"train": []},
    }

    def keys(self, **changes):
        return keys_against({**self.rl, **changes})

    def test_nothing(self):
        assert self.keys() == []

    def test_reward(self):
        nameless = {"name": None}
        assert self.keys(reward=nameless) == ["reward.name"]
        assert self.keys(reward=nameless, workflow={"name": "single_turn"}) == ["reward.name"]
        assert self.keys(reward=nameless, workflow={"name": "mine.py:Agent"}) == []
        assert self.keys(reward=nameless, task={"name": "addition"}) == []
        assert self.keys(reward=nameless, environments={"train": [{"id": "e"}]}) == []

    def test_supervised_training_needs_no_reward(self):
        assert keys_against({"model": {"path": "m"}, "train_dataset": {"path": "rows.jsonl"}}) == []

    @pytest.mark.parametrize("path", ["", "rows.csv", "data/rows.arrow", "/data/geometry3k/rows.jsonl"])
    def test_data_that_cannot_be_read(self, path):
        assert self.keys(train_dataset={"path": path}) == ["train_dataset.path"]

    @pytest.mark.parametrize(
        "path",
        ["rows.jsonl", "data/rows.parquet", "./data/gsm8k", "data/gsm8k", "/data/gsm8k", "openai/gsm8k", "addition"],
    )
    def test_data_that_may_be_there(self, path):
        assert self.keys(train_dataset={"path": path}) == []

    def test_tasks_environments_and_random_tokens_need_no_path(self):
        nothing = {"path": ""}
        assert self.keys(train_dataset=nothing, task={"name": "addition"}) == []
        assert self.keys(train_dataset=nothing, environments={"train": [{"id": "e"}]}) == []
        assert self.keys(train_dataset={**nothing, "fake": {"batch_size": 2}}) == []

    @pytest.mark.parametrize(
        "path", ["Qwen/Qwen2.5-VL-3B-Instruct", "/m/Qwen2-VL-7B/", "llava-hf/llava-1.5-7b", "OpenGVLab/InternVL3-8B"]
    )
    def test_vision_models(self, path):
        assert self.keys(actor={"path": path}, ref={"path": path}) == ["actor.path"]

    @pytest.mark.parametrize(
        "path", ["/home/pavl/vl/qwen3", "my-revision-2", "Qwen/Qwen3-0.6B", "builtin:tiny-addition"]
    )
    def test_text_models(self, path):
        assert self.keys(actor={"path": path}) == []

    @pytest.mark.parametrize("path", FOREIGN_SECTIONS)
    def test_foreign_sections(self, path):
        assert keys_against(self.rl, [path]) == [path]
        assert keys_against(self.rl, [f"{path}.ddp.a", f"{path}.b"]) == [path]


class TestSubclassKeys:
    def test_an_unknown_key_names_the_user_class_to_declare_it_in(self):
        hints = subclass_keys({"actor": {}, "max_turns": 8, "tir": {"max_turns": 2}, "seed": 1})
        assert [*hints] == ["max_turns", "tir"]
        assert "GRPOConfig with `max_turns: int`" in hints["max_turns"]
        assert all("--schema my.module:MyConfig" in hint for hint in hints.values())

    def test_the_class_to_extend_is_that_of_the_file(self):
        assert "PPOConfig with" in subclass_keys({"critic": {}, "max_turns": 8})["max_turns"]
