"""AReaL's example files load unchanged, with the expected values and the problems that prevent a start here.

The files under `areal_files/` are like those of AReaL: every section repeats the names, values use references.
"""

import contextlib
import functools
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from areal_like.config.allocation import Machine
from areal_like.config.allocation.models import allocate
from areal_like.config.dialects.areal import subclass_keys
from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from launcher.cli import main
from tests.config.areal_files.expected import LEGACY_FILES, MODULE, PLAIN_FILES, SUBCLASS_FILES

FILES = Path(__file__).parent / "areal_files"
RUNNABLE = [name for name in PLAIN_FILES if "clevr" not in name and "megatron" not in name]
NO_GPUS = Machine(0, 8, "no NVIDIA driver", ("sglang", "vllm"))
REWARD = "reward.name"
DATA = ("train_dataset.path", "valid_dataset.path")


def file(name):
    return FILES / f"{name}.yaml"


def body(name):
    return yaml.safe_load(file(name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def launcher(*words):
    """`python -m launcher ...`, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Done(code, out.getvalue(), err.getvalue())


@functools.cache
def obstacles(name, *words):
    """What a dry run says keeps the file from starting: key -> reasons."""
    done = launcher("--config", file(name), "--dry-run=json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for entry in json.loads(done.stdout)["cannot_start"]:
        found.setdefault(entry["key"], []).append(entry["reason"])
    return found


def test_every_file_is_named_here():
    named = {*PLAIN_FILES, *SUBCLASS_FILES, *LEGACY_FILES}
    assert named == {path.stem for path in FILES.glob("*.yaml")}


class TestPlainFiles:
    @pytest.mark.parametrize("name", PLAIN_FILES)
    def test_loads_as_its_class_with_its_values(self, name):
        cls, expected = PLAIN_FILES[name]
        loaded = load(file(name))
        assert loaded.cls is cls
        assert {path: loaded.get(path, "absent") for path in expected} == expected

    @pytest.mark.parametrize("name", PLAIN_FILES)
    def test_is_an_object_of_its_class(self, name):
        config: Any = load(file(name)).config
        assert config.saver.experiment_name == config.experiment_name
        assert config.recover.fileroot == config.cluster.fileroot
        assert type(config) is PLAIN_FILES[name][0]

    @pytest.mark.parametrize("name", PLAIN_FILES)
    def test_the_remedy_for_missing_gpus_works_on_a_machine_without_any(self, name):
        allocation, _ = allocate(load(file(name)).config, NO_GPUS)
        assert allocation
        remedy = allocation.needs[-1].message.partition(" Write ")[2].removesuffix(" to use what it has")
        assert remedy == "allocation_mode=auto cluster.n_gpus_per_node=auto"
        allocation, problems = allocate(load(file(name), remedy.split()).config, NO_GPUS)
        assert allocation and not allocation.needs and not problems

    def test_no_file_needs_a_section_that_only_repeats(self):
        bare = load(file("reinforce"))
        assert bare.get("ref.experiment_name") == "math-reinforce"
        assert bare.get("ref.dtype") == "bfloat16"

    def test_a_contradiction_that_no_example_has_is_still_refused(self):
        with pytest.raises(ConfigError, match=r"saver\.trial_name.*trial_name"):
            load(file("grpo"), ["saver.trial_name=another"])

    def test_an_override_goes_through_the_wiring_of_the_file(self):
        loaded = load(file("gsm8k_ppo"), ["actor.lr=3e-6", "gconfig.temperature=0.7", "trial_name=t2"])
        assert loaded.get("critic.optimizer.lr") == 3e-6
        assert loaded.get("actor.temperature") == 0.7
        assert loaded.get("evaluator.trial_name") == "t2"


class TestSubclassFiles:
    @pytest.mark.parametrize("name", SUBCLASS_FILES)
    def test_loads_with_the_schema_of_its_user(self, name):
        schema, expected = SUBCLASS_FILES[name]
        loaded = load(file(name), schema=schema)
        assert loaded.experiment == "grpo"
        assert loaded.cls.__name__ == schema.partition(":")[2]
        assert {path: loaded.get(path, "absent") for path in expected} == expected
        assert type(loaded.config) is loaded.cls

    @pytest.mark.parametrize("name", SUBCLASS_FILES)
    def test_without_a_user_schema_the_flag_is_named(self, name):
        done = launcher("--config", file(name), "--dry-run=json")
        assert done.returncode == 2
        assert "--schema" in done.stderr
        for key in subclass_keys(body(name)):
            assert key in done.stderr

    def test_a_python_file_may_hold_the_schema(self):
        loaded = load(file("multi_turn_math"), schema=f"{FILES / 'multi_turn_schema.py'}:MultiTurnConfig")
        assert loaded.get("max_turns") == 8

    def test_key_declarations_check_the_users_values(self):
        schema = f"{MODULE}.multi_turn_schema:CheckedMultiTurnConfig"
        assert load(file("multi_turn_math"), schema=schema).config.max_turns == 8
        with pytest.raises(ConfigError, match=r"max_turns.*65"):
            load(file("multi_turn_math"), ["max_turns=65"], schema=schema)

    def test_a_plain_dataclass_checks_types(self):
        with pytest.raises(ConfigError, match=r"n_trajs.*many"):
            load(file("multi_turn_math"), ["n_trajs=many"], schema=SUBCLASS_FILES["multi_turn_math"][0])

    def test_keys_that_the_file_leaves_out_have_the_users_defaults(self):
        loaded = load(file("grpo"), schema=SUBCLASS_FILES["tongyi_deepresearch"][0])
        assert loaded.get("max_llm_calls_per_run") == 100
        assert loaded.get("judge_engine.experiment_name") == "math-grpo"

    def test_the_dry_run_reports_unread_user_keys(self):
        found = obstacles("search_agent", "--schema", SUBCLASS_FILES["search_agent"][0])
        assert "max_turns" in found["workflow.name"][0]

    @pytest.mark.parametrize(
        ("name", "expected", "max_tokens"),
        [
            (
                "multi_turn_math",
                {"name": "multi_turn", "args": {"export_style": "individual", "n_trajs": 2, "max_turns": 8}},
                65536,
            ),
            (
                "tir_math",
                {
                    "name": "tool_integrated",
                    "args": {
                        **{"max_calls": 2, "call_timeout_s": 30, "tools": "python;calculator"},
                        "max_answer_tokens": 3000,
                    },
                },
                3000,
            ),
        ],
    )
    def test_the_keys_of_an_example_are_arguments_of_its_workflow(self, name, expected, max_tokens):
        schema = SUBCLASS_FILES[name][0]
        loaded = load(file(name), schema=schema)
        assert {key: loaded.get(f"workflow.{key}") for key in expected} == expected
        assert loaded.get("gconfig.max_tokens") == max_tokens
        assert "workflow.name" not in obstacles(name, "--schema", schema)
        own = load(file(name), ["workflow.name=single_turn"], schema=schema)
        assert own.get("workflow.args") == {}


class TestLegacyFiles:
    @pytest.mark.parametrize("name", LEGACY_FILES)
    def test_one_message_names_the_problem_and_the_remedy(self, name):
        done = launcher("--config", file(name), "--dry-run=json")
        assert done.returncode == 2
        assert done.stderr.count("realhf, AReaL's first generation") == 1
        assert "no such key" not in done.stderr
        for words in LEGACY_FILES[name]:
            assert words in done.stderr

    @pytest.mark.parametrize("name", LEGACY_FILES)
    def test_is_one_problem(self, name):
        with pytest.raises(ConfigError) as raised:
            load(file(name))
        assert len(raised.value.problems) == 1


class TestPlan:
    @pytest.mark.parametrize("name", ["grpo_megatron", "sft_megatron"])
    def test_megatron_cannot_start(self, name):
        assert any("megatron" in reason.lower() for reasons in obstacles(name).values() for reason in reasons)

    def test_a_megatron_section_is_named(self):
        assert "FSDP2" in obstacles("sft_megatron")["model.megatron"][0]

    @pytest.mark.parametrize(("name", "model"), [("clevr_grpo", "actor.path"), ("clevr_sft", "model.path")])
    def test_a_vision_model_cannot_start(self, name, model):
        found = obstacles(name)
        assert "only text models" in found[model][0]
        assert "holds images" in found["train_dataset.path"][0]

    def test_a_missing_reward_names_the_key_to_set(self):
        assert "set reward.name=" in obstacles("grpo", "train_dataset.known=none")[REWARD][0]

    @pytest.mark.parametrize("name", RUNNABLE)
    def test_what_the_scripts_decide_is_known_from_the_datasets_name(self, name):
        assert not {REWARD, "workflow.name"} & set(obstacles(name))

    @pytest.mark.parametrize(
        ("name", "words", "temperature", "template"),
        [
            ("grpo", (), 0.6, {"enable_thinking": False}),
            ("gsm8k_ppo", (), 0.6, {"enable_thinking": False}),
            ("grpo", ("allocation_mode=sglang:d4+eval",), 1.0, {"enable_thinking": False}),
            ("rloo", ("allocation_mode=sglang:d4+eval",), 0.9, {"enable_thinking": False}),
            ("countdown", (), 1.0, {}),
            ("boba_vllm", (), None, {}),
            ("grpo", ("train_dataset.path=rows.jsonl",), None, {}),
            ("grpo", ("train_dataset.known=none",), None, {}),
            ("grpo", ("evaluator.gconfig.top_p=0.9",), None, {"enable_thinking": False}),
            ("grpo", ("evaluator.gconfig.temperature=0.3",), 0.3, {"enable_thinking": False}),
            ("grpo", ("evaluator.gconfig.greedy=true",), None, {"enable_thinking": False}),
            ("grpo", ("+chat_template_args.enable_thinking=true",), 0.6, {"enable_thinking": True}),
            ("grpo", ("+chat_template_args.style=short",), 0.6, {"enable_thinking": False, "style": "short"}),
        ],
    )
    def test_evaluations_sample_and_prompts_think_as_the_scripts_decide(self, name, words, temperature, template):
        loaded = load(file(name), words)
        assert loaded.get("evaluator.gconfig.temperature") == temperature
        assert loaded.get("chat_template_args") == template

    def test_a_file_that_does_not_repeat_the_names_keeps_the_defaults_of_this_framework(self, tmp_path):
        own = body("grpo")
        del own["evaluator"]["experiment_name"]
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
        loaded = load(tmp_path / "own.yaml")
        assert loaded.get("evaluator.gconfig.temperature") is None and loaded.get("chat_template_args") == {}

    def test_the_plan_says_what_the_scripts_decide(self):
        assert "as in AReaL's script for gsm8k" in load(file("grpo")).origin("evaluator.gconfig.temperature").where
        plan = " ".join(launcher("--config", file("grpo"), "--dry-run=full").stdout.split())  # without its lines
        for setting in ("chat_template_args.enable_thinking = false", "evaluator.gconfig.temperature = 0.6"):
            assert f"{setting} as in AReaL's script for gsm8k" in plan

    def test_a_named_reward_is_enough(self):
        assert REWARD not in obstacles("grpo", "reward.name=my.rewards:score")

    @pytest.mark.parametrize("name", [name for name in PLAIN_FILES if "clevr" not in name])
    def test_missing_datasets_are_no_fault_of_an_example_file(self, name):
        assert not set(DATA) & set(obstacles(name))


class TestPrintedConfiguration:
    @pytest.mark.parametrize("name", ["boba_vllm", "gsm8k_ppo", "hhrlhf_rw", "rloo", "sft_megatron"])
    def test_the_printed_configuration_means_the_same(self, name, tmp_path):
        printed = launcher("--config", file(name), "--cfg")
        assert printed.returncode == 0, printed.stderr
        again = tmp_path / "again.yaml"
        again.write_text(printed.stdout, encoding="utf-8")
        first, second = load(file(name)), load(again)
        assert second.cls is first.cls
        assert second.values == first.values

    def test_with_the_schema_of_a_user(self, tmp_path):
        schema, _ = SUBCLASS_FILES["tir_math"]
        printed = launcher("--config", file("tir_math"), "--schema", schema, "--cfg")
        again = tmp_path / "again.yaml"
        again.write_text(printed.stdout, encoding="utf-8")
        assert load(again, schema=schema).values == load(file("tir_math"), schema=schema).values
