"""`--help` covers every key, `--explain` names the source of a value, and the output of `--cfg` loads again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.config.names import ALIASES
from areal_like.config.sources.library import data_folder
from areal_like.config.sources.yaml_file import read_yaml
from launcher.commands.help import first_sentence
from launcher.commands.show_config import configuration_text
from tests.config.areal_files.expected import PLAIN_FILES, SUBCLASS_FILES
from tests.support.commands import AREAL, Run, command_runner

SHIPPED = sorted(data_folder("experiments").glob("*.yaml"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return command_runner(tmp_path, capsys, monkeypatch)


class TestHelp:
    def test_help_needs_no_file_and_lists_everything(self, run: Run) -> None:
        text = run.answer("--help")
        assert text == run.answer("-h") == run.answer("--config", "nowhere", "--help")
        for path in (*SHIPPED, *data_folder("conf").glob("*")):
            assert path.name in text
        for option in data_folder("conf").glob("*/*.yaml"):
            assert option.stem in text
        for short, real in ALIASES.items():
            assert f"{short} " in text
            assert real in text
        for flag in ("--config", "--dry-run", "--multirun", "--explain", "--cfg", "--help", "--schema", "--replace"):
            assert flag in text

    def test_help_explains_how_to_stop_and_resume(self, run: Run) -> None:
        codes = run.answer("--help").partition("Exit codes:")[2]
        assert "75 stopped early: start it again" in codes
        assert "recover.mode=disabled, the default, it starts over" in codes

    def test_help_of_a_section_has_every_key_with_type_default_choices_and_meaning(self, run: Run) -> None:
        text = run.answer("--help=actor.optimizer")
        assert text.startswith("actor.optimizer  (OptimizerConfig")
        loaded = load("grpo")
        for path in loaded.schema.keys:
            if path.startswith("actor.optimizer."):
                assert f"\n{path} = " in text
        assert "actor.optimizer.lr = 2e-05\n    a number >= 0\n    Peak learning rate" in text
        assert "one of adam, sgd, adam_bf16, muon" in text

    def test_help_of_a_section_names_the_sections_below_it(self, run: Run) -> None:
        text = run.answer("--help=rollout")
        assert "rollout.max_head_offpolicyness = 0" in text
        below = run.answer("--help=actor").rpartition("Sections below it:")[2]
        for name in ("optimizer", "fsdp", "mb_spec", "reward_norm", "advantage"):
            assert f"actor.{name} " in below

    def test_help_of_one_key_and_of_a_short_name(self, run: Run) -> None:
        assert run.answer("--help=actor.lr") == run.answer("--help=actor.optimizer.lr")
        assert "short: actor.lr" in run.answer("--help=actor.lr")

    @pytest.mark.parametrize(
        "path",
        ["critic.eps_clip", "model.path", "environments.train", "actor.adv_norm", "valid_dataset", "launcher.env"],
    )
    def test_help_covers_all_experiments_lists_and_null_defaults(self, run: Run, path: str) -> None:
        assert run.answer(f"--help={path}").startswith(path)

    @pytest.mark.parametrize(
        ("key", "suggestion"),
        [("rolout", "rollout"), ("actor.optimzer", "actor.optimizer"), ("actor.learning_rate", "actor.optimizer.lr")],
    )
    def test_help_for_an_unknown_name_suggests_the_nearest(self, run: Run, key: str, suggestion: str) -> None:
        message = run.refusal(f"--help={key}")
        assert message.startswith(f"{key} [--help]: no such section or key; did you mean {suggestion}")
        assert run.refusal("--help=nonsense").startswith("nonsense [--help]: no such section or key")

    def test_help_of_a_users_class_has_the_keys_of_the_user(self, run: Run) -> None:
        schema = SUBCLASS_FILES["multi_turn_math"][0]
        assert "max_turns = " in run.answer("--help=max_turns", f"--schema={schema}")

    def test_version_and_keys_are_answered_without_a_file(self, run: Run) -> None:
        assert run.answer("--version").startswith("areal-like ")
        assert "live" in run.answer("keys")

    def test_the_commands_that_a_dry_run_advises_work(self, run: Run) -> None:
        """`--help` takes its value with `=` only, or it would swallow the override behind it."""
        advice = [line for line in run.answer("--config", "grpo", "--dry-run=full").splitlines() if "--help" in line]
        assert len(advice) == 1
        words = advice[0].partition("-m launcher ")[2].replace("KEY", "actor.lr").split()
        assert run.answer(*words).startswith("actor.optimizer.lr")


class TestExplain:
    FILE = """
defaults:
  - actor: tiny
  - algorithm: ppo
experiment_name: example
actor:
  dtype: bfloat16
  lr: 0.25
critic:
  optimizer: ${actor.optimizer}
  eps_clip: ${actor.eps_clip}
tokenizer_path: ${actor.path}/tokenizer
seed: ${gconfig.n_samples}
total_train_steps: ${seed}
"""

    @pytest.fixture
    def explain(self, run: Run) -> Any:
        Path("example.yaml").write_text(self.FILE.lstrip())
        return lambda key, *words: run.answer("--config", "example", f"--explain={key}", *words).splitlines()

    def test_a_default_is_explained(self, explain: Any) -> None:
        assert explain("gconfig.n_samples") == [
            "gconfig.n_samples = 1",
            "  from  1  [default of GenerationHyperparameters.n_samples]",
        ]

    def test_a_group_that_the_schema_chose(self, explain: Any) -> None:
        first, second, *_ = explain("train_dataset.type")
        assert first == "train_dataset.type = rl"
        assert second == "  from  rl  [group of the schema: conf/experiment/ppo.yaml:4]"

    def test_a_group_of_the_file_overrides_the_default(self, explain: Any) -> None:
        assert explain("actor.path") == [
            'actor.path = "builtin:tiny-addition"',
            '  from  "builtin:tiny-addition"  [group of the file: conf/actor/tiny.yaml:2]',
            '  beats ""  [default of PPOActorConfig.path]',
        ]

    def test_the_file_overrides_its_groups(self, explain: Any) -> None:
        assert explain("actor.dtype")[1:] == [
            "  from  bfloat16  [file: example.yaml:6]",
            "  beats float32  [group of the file: conf/actor/tiny.yaml:3]",
            "  beats bfloat16  [default of PPOActorConfig.dtype]",
        ]

    def test_a_group_on_the_command_line_overrides_the_file(self, explain: Any) -> None:
        assert explain("actor.dtype", "actor=tiny")[1:] == [
            "  from  float32  [group of the command line: conf/actor/tiny.yaml:3]",
            "  beats bfloat16  [file: example.yaml:6]",
            "  beats bfloat16  [default of PPOActorConfig.dtype]",
        ]

    def test_an_override_wins_and_is_quoted_as_typed(self, explain: Any) -> None:
        assert explain("actor.lr", "actor.optimizer.lr=0.5")[:3] == [
            "actor.optimizer.lr = 0.5",
            "  from  0.5  [override actor.optimizer.lr=0.5]",
            "  beats 0.25  [file: example.yaml:7]",
        ]
        assert explain("actor.optimizer.lr", "actor.lr=0.5")[1] == "  from  0.5  [override actor.lr=0.5]"

    def test_an_explanation_follows_a_reference_to_the_source_of_its_value(self, explain: Any) -> None:
        assert explain("total_train_steps", "gconfig.n_samples=7") == [
            "total_train_steps = 7",
            '  from  "${seed}"  [file: example.yaml:13]',
            '  via   seed = "${gconfig.n_samples}"  [file: example.yaml:12]',
            "  via   gconfig.n_samples = 7  [override gconfig.n_samples=7]",
            "  beats null  [default of PPOConfig.total_train_steps]",
        ]

    def test_a_reference_to_a_whole_section_is_followed_as_well(self, explain: Any) -> None:
        lines = explain("critic.lr")
        assert lines[0] == "critic.optimizer.lr = 0.25"
        assert any("example.yaml:9" in line for line in lines)

    def test_a_default_for_one_section_is_explained_as_such(self, explain: Any) -> None:
        """The class has another default for this key than the experiment gives it here."""
        lines = explain("ref.path")
        assert lines[0] == 'ref.path = "builtin:tiny-addition"'
        assert '"${actor.path}"' in lines[1]
        assert "PPOActorConfig.path" not in lines[1]

    def test_a_section_is_explained_key_by_key(self, explain: Any) -> None:
        lines = explain("actor.optimizer")
        assert "actor.optimizer.lr = 0.25  [example.yaml:7]" in lines
        assert "actor.optimizer.beta1 = 0.9  [default of OptimizerConfig.beta1]" in lines
        assert all(line.startswith("actor.optimizer.") for line in lines)

    def test_a_map_and_its_items_are_explained(self, explain: Any) -> None:
        word = "+launcher.env.A=1"
        assert explain("launcher.env.A", word) == ['launcher.env.A = "1"', f'  from  "1"  [override {word}]']
        whole = explain("launcher.env", word)
        assert whole[0] == 'launcher.env = {A: "1"}'
        assert word in "".join(whole)

    def test_a_key_below_a_null_section_names_it_and_its_source(self, run: Run) -> None:
        message = run.refusal("--config", "grpo", "--explain", "actor.adv_norm.eps")
        assert message.startswith("actor.adv_norm.eps [--explain]: has no value: actor.adv_norm is null (default)\n")
        message = run.refusal("--config", "grpo", "--explain", "actor.lr", "actor.optimizer=null")
        assert "actor.optimizer is null (override actor.optimizer=null)" in message
        assert run.answer("--config", "grpo", "--explain", "actor.adv_norm").startswith("actor.adv_norm = null")

    def test_explaining_an_unknown_key_suggests_the_nearest(self, run: Run) -> None:
        message = run.refusal("--config", "grpo", "--explain", "actor.optimizer.learning_rate")
        assert "did you mean actor.optimizer.lr (short: actor.lr)?" in message

    def test_errors_in_other_keys_are_reported_instead(self, run: Run) -> None:
        assert run.refusal("--config", "grpo", "--explain", "seed", "seed=x").startswith("seed [override seed=x]")


class TestCfg:
    @pytest.mark.parametrize(
        "file",
        [*SHIPPED, *(AREAL / f"{name}.yaml" for name in (*PLAIN_FILES, *SUBCLASS_FILES))],
        ids=lambda path: f"{path.parent.name}-{path.stem}",
    )
    def test_a_printed_configuration_loads_to_the_same_values(self, run: Run, file: Path) -> None:
        schema = SUBCLASS_FILES[file.stem][0] if file.parent == AREAL and file.stem in SUBCLASS_FILES else None
        first = load(file, schema=schema)
        for program in file.parent.glob("*.py"):  # that it names by a path beside itself
            shutil.copy(program, program.name)
        Path("again.yaml").write_text(configuration_text(first), encoding="utf-8")
        second = load("again.yaml", schema=schema)
        assert (second.values, second.cls) == (first.values, first.cls)
        assert [(leaf.path, leaf.value) for leaf in second.foreign] == [
            (leaf.path, leaf.value) for leaf in first.foreign
        ]
        assert configuration_text(second) == configuration_text(first)

    def test_cfg_prints_the_text_of_the_configuration(self, run: Run) -> None:
        words = ["actor.lr=0.5", "rollout=vllm"]
        assert run.answer("--config", "ppo", "--cfg", *words) == configuration_text(load("ppo", words))

    def test_cfg_has_overrides_resolved_references_and_auto_values(self, run: Run) -> None:
        tree = self.tree(run, "--config", "grpo", "--cfg", "actor.lr=0.5", "actor.path=some/model")
        assert tree["actor"]["optimizer"]["lr"] == 0.5
        assert tree["ref"]["path"] == tree["tokenizer_path"] == "some/model"
        assert tree["cluster"]["n_gpus_per_node"] == "auto"

    def tree(self, run: Run, *words: str) -> Any:
        Path("printed.yaml").write_text(run.answer(*words), encoding="utf-8")
        root = read_yaml(Path("printed.yaml"), "printed.yaml").root
        assert root is not None
        return root.plain()

    @pytest.mark.parametrize("section", ["actor", "actor.optimizer", "rollout", "launcher.env", "environments"])
    def test_a_section_alone_is_that_part_of_the_whole(self, run: Run, section: str) -> None:
        words = ["--config", "grpo", "+launcher.env.A=yes"]
        whole, part = self.tree(run, *words, "--cfg"), self.tree(run, *words, f"--cfg={section}")
        for name in section.split("."):
            assert list(part) == [name]
            whole, part = whole[name], part[name]
        assert part == whole

    def test_one_key_and_a_short_name(self, run: Run) -> None:
        assert run.answer("--config", "grpo", "--cfg=actor.lr") == "actor:\n  optimizer:\n    lr: 0.0003\n"
        assert run.answer("--config", "grpo", "--cfg=seed") == "seed: 1\n"

    def test_an_unknown_key_suggests_the_nearest(self, run: Run) -> None:
        assert "did you mean actor?" in run.refusal("--config", "grpo", "--cfg=actr")
        assert "[--cfg]" in run.refusal("--config", "grpo", "--cfg=nonsense")

    def test_texts_that_look_like_other_types_are_printed_as_texts(self, run: Run) -> None:
        odd = [
            "yes",
            "1e-4",
            "null",
            "${x}",
            "0x10",
            "a: b",
            "#",
            "'",
            '"',
            "\\",
            " ",
            "é\u2028",
            "- a",
            "~",
            "2024-01-01",
        ]
        quoted = ", ".join(json.dumps(text.replace("${", "\\${")) for text in odd)
        Path("odd.yaml").write_text(f"experiment_name: odd\nactor: {{path: m}}\ngconfig: {{stop: [{quoted}]}}\n")
        printed = run.answer("--config", "odd", "--cfg")
        Path("again.yaml").write_text(printed, encoding="utf-8")
        assert load("again.yaml").get("gconfig.stop") == load("odd").get("gconfig.stop") == odd


def test_a_section_set_to_null_names_the_value_it_replaced(run: Run) -> None:
    messages = run.answer("--config", "grpo", "--explain", "actor.optimizer", "actor.optimizer=null")
    assert messages.startswith("actor.optimizer = null\n  from  null  [override actor.optimizer=null]")
    assert "beats actor.optimizer.lr = 0.0003  [file: experiments/grpo.yaml:" in messages


def test_help_shows_the_items_of_a_list_and_the_options_of_a_group(run: Run) -> None:
    assert "evaluator.benchmarks[].name = (required)" in run.answer("--help=evaluator.benchmarks")
    assert run.answer("--help=environments.train.id").startswith("environments.train[].id = null")
    assert "algorithm=dapo  " in run.answer("--help=algorithm")
    both = run.answer("--help=rollout")
    assert both.startswith("rollout  (InferenceEngineConfig")
    assert "rollout=vllm  " in both


def test_help_shows_full_sentences_and_marks_what_cannot_start_yet(run: Run) -> None:
    text = run.answer("--help")
    titles = [line[24:] for line in text.partition("\nExperiments\n")[2].partition("\n\n")[0].splitlines()]
    assert len(titles) == len(list(data_folder("experiments").glob("*.yaml")))
    assert all(title.endswith(".") for title in titles), titles
    assert "cluster                local, ray (planned), slurm (planned)" in text
    for group in (path.name for path in data_folder("conf").iterdir() if path.is_dir()):
        options = run.answer(f"--help={group}").split(f"\n{group}=")[1:]
        assert all(option.rstrip().endswith(".") for option in options), options
    assert first_sentence("Dr. GRPO: as grpo for groups. It is") == "Dr. GRPO: as grpo for groups."
