"""All problems at once, each with key, place, allowed values and suggestion; exit code 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from areal_like.config.load import load
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.generation import MAX_STOP_LENGTH, MAX_STOP_TEXTS, MAX_STOP_TOKENS
from areal_like.serving.requests import BadRequest, parse_group

GOOD = "experiment_name: e\nactor: {path: m}\n"


def problems(text: str | bytes, tmp_path: Path, *overrides: str) -> list[Problem]:
    file = tmp_path / "f.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as raised:
        load(file, overrides)
    return list(raised.value.problems)


def only(text: str | bytes, tmp_path: Path, *overrides: str) -> str:
    found = problems(text, tmp_path, *overrides)
    assert len(found) == 1, found
    return found[0].text()


class TestValues:
    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("actor.use_lora=yes", "'yes' is not a boolean; write true"),
            ("actor.use_lora=1", "1 is not a boolean"),
            ("gconfig.n_samples=1.5", "1.5 is not an integer; expected an integer >= 1"),
            ("gconfig.n_samples=4.0", "4.0 is not an integer; write 4"),
            ("gconfig.n_samples=true", "true is not an integer"),
            ("gconfig.n_samples=0", "0 is out of range; expected an integer >= 1"),
            ("gconfig.n_samples=null", "null is not allowed here"),
            ("actor.lr=fast", "'fast' is not a number; expected a number >= 0"),
            ("actor.lr='1e-4'", "'1e-4' is not a number"),
            ("actor.lr=nan", "nan is not a finite number"),
            ("actor.lr=-1", "out of range"),
            ("actor.lr=inf", "inf is not a finite number"),
            ("seed=99999999999999999999999", "too large for an integer"),
            ("trial_name=true", 'is not a string; write it in quotes ("true")'),
            ("trial_name=1.50", "is not a string; write it in quotes"),
            ("trial_name=a/b", "does not fit"),
            ("actor.kl_estimator=k9", "'k9' is not one of k1, k2, k3"),
            ("actor.target_modules=q_proj", "is not a list; write ['q_proj']"),
            ("actor.target_modules=[q,[r]]", "item 2"),
            ("launcher.env=3", "is not a mapping"),
            ("actor.fsdp=3", "is a section and cannot be 3"),
            ("actor.fsdp=null", "is a section and cannot be null"),
            ("rollout.max_head_offpolicyness=-1", "out of range"),
        ],
    )
    def test_a_wrong_value_names_the_valid_ones(self, tmp_path: Path, override: str, message: str) -> None:
        text = only(GOOD, tmp_path, override)
        assert message in text
        assert f"[override {override}]" in text

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("use_lora: yes", "'yes' is not a boolean; write true"),
            ("use_lora: off", "write false"),
            ("lora_rank: 1.5", "1.5 is not an integer"),
            ("lora_rank: '4'", "'4' is not an integer"),
            ("eps_clip: '0.2'", "'0.2' is not a number"),
            ("dtype: 12:30", "'12:30' is not one of"),
        ],
    )
    def test_an_error_in_a_file_names_the_line(self, tmp_path: Path, line: str, message: str) -> None:
        text = only(f"experiment_name: e\nactor:\n  path: m\n  {line}\n", tmp_path)
        assert message in text
        assert "f.yaml:4]" in text

    @pytest.mark.parametrize(("written", "value"), [("1e-4", 1e-4), ("1", 1.0), (".5", 0.5), ("1E2", 100.0)])
    def test_numbers_are_read_equally_in_files_and_overrides(self, tmp_path: Path, written: str, value: float) -> None:
        file = tmp_path / "f.yaml"
        file.write_text(f"experiment_name: e\nactor: {{path: m, lr: {written}}}\n")
        assert load(file).get("actor.optimizer.lr") == value
        assert load(file, [f"actor.lr={written}"]).get("actor.optimizer.lr") == value

    @pytest.mark.parametrize("written", ["None", "null", "~"])
    def test_none_and_null_are_null(self, tmp_path: Path, written: str) -> None:
        file = tmp_path / "f.yaml"
        file.write_text(f"{GOOD}total_train_steps: {written}\n")
        assert load(file).get("total_train_steps") is None
        if written != "~":
            assert load(file, [f"total_train_steps={written}"]).get("total_train_steps") is None
        assert load(file, ["~total_train_steps"]).get("total_train_steps") is None


class TestNames:
    @pytest.mark.parametrize(
        ("override", "suggestion"),
        [
            ("actor.learning_rate=1", "actor.optimizer.lr (short: actor.lr)"),
            ("actor.optimizer.learning_rate=1", "actor.optimizer.lr (short: actor.lr)"),
            ("gconfig.n_sample=1", "gconfig.n_samples (short: n_samples)"),
            ("actr.path=x", "actor.path"),
            ("actor.eps_clip_high=1", "actor.eps_clip_higher"),
            ("rollout.max_head_offpolicynes=1", "rollout.max_head_offpolicyness"),
            ("num_generations=4", "gconfig.n_samples"),
            ("cluster.file_root=x", "cluster.fileroot"),
            ("saver.freq_step=1", "saver.freq_steps"),
            ("max_steps=5", "total_train_steps"),
        ],
    )
    def test_an_unknown_key_suggests_the_nearest_valid_one(
        self, tmp_path: Path, override: str, suggestion: str
    ) -> None:
        assert f"no such key; did you mean {suggestion}" in only(GOOD, tmp_path, override)

    def test_plus_adds_only_inside_maps(self, tmp_path: Path) -> None:
        assert "`+` adds only inside maps" in only(GOOD, tmp_path, "+actor.zz=1")
        assert "remove the `+`" in only(GOOD, tmp_path, "+actor.path=x")
        assert "no such key" in only(GOOD, tmp_path, "++actor.zz=1")

    def test_an_unknown_group_or_option_lists_the_existing_ones(self, tmp_path: Path) -> None:
        assert "no option 'vlm'; did you mean vllm? There are: embedded, sglang, vllm" in only(
            GOOD, tmp_path, "rollout=vlm"
        )
        assert "did you mean algorithm=dapo?" in only(GOOD, tmp_path, "algoritm=dapo")
        text = "defaults: [{rolout: vllm}]\n" + GOOD
        assert "no group 'rolout'; did you mean rollout?" in only(text, tmp_path)
        text = "defaults:\n  - rollout: vlm\n" + GOOD
        assert "f.yaml:2" in only(text, tmp_path)

    def test_a_misspelt_section_is_one_problem(self, tmp_path: Path) -> None:
        text = only("experiment_name: e\nactr:\n  path: m\n  lr: x\n  foo: 1\n", tmp_path)
        assert "did you mean actor? (3 keys below it were not read)" in text

    def test_consequences_of_an_error_are_listed_under_it(self, tmp_path: Path) -> None:
        found = problems("experiment_nam: e\nactor: {path: m}\n", tmp_path)
        assert [p.key for p in found] == ["experiment_nam"]
        assert found[0].follows[0].key == "experiment_name"

    def test_an_alias_beside_its_real_path_is_a_contradiction(self, tmp_path: Path) -> None:
        text = "experiment_name: e\nactor: {path: m, lr: 1.0, optimizer: {lr: 2.0}}\n"
        assert "are the same key; keep one" in only(text, tmp_path)
        assert "are the same key; keep one" in only(GOOD, tmp_path, "actor.lr=1", "actor.optimizer.lr=1")

    def test_items_of_a_list_are_checked_each(self, tmp_path: Path) -> None:
        text = GOOD + "environments:\n  train:\n    - id: a\n      args: {x: 1}\n    - idd: b\n    - 3\n"
        found = problems(text, tmp_path)
        assert [(p.key, p.where[-2:]) for p in found] == [
            ("environments.train.1.idd", ":7"),
            ("environments.train.2", ":8"),
        ]
        assert "did you mean environments.train.1.id?" in found[0].message

    def test_an_unknown_section_names_the_schema_flag(self, tmp_path: Path) -> None:
        assert "--schema my.module:MyConfig" in only(GOOD + "my_very_own_thing: 3\n", tmp_path)


class TestReferences:
    def test_an_unresolved_reference_suggests_the_nearest_key(self, tmp_path: Path) -> None:
        text = only(GOOD + "gconfig:\n  temperature: ${actor.temprature}\n", tmp_path)
        assert "f.yaml:4" in text
        assert "no such key; did you mean actor.temperature?" in text

    def test_a_circular_reference_is_one_problem(self, tmp_path: Path) -> None:
        found = problems(GOOD + "gconfig: {n_samples: '${seed}'}\nseed: ${gconfig.n_samples}\n", tmp_path)
        assert len(found) == 1
        assert "refers to itself" in found[0].message

    def test_a_circular_reference_through_a_default_is_detected(self, tmp_path: Path) -> None:
        found = problems(GOOD + "gconfig: {temperature: '${actor.temperature}'}\n", tmp_path)
        assert len(found) == 1
        assert "refers to itself" in found[0].message

    def test_the_value_of_a_reference_is_checked(self, tmp_path: Path) -> None:
        text = only(GOOD + "gconfig:\n  n_samples: ${experiment_name}\n", tmp_path)
        assert "'e' is not an integer" in text
        assert "from ${experiment_name}" in text

    def test_an_invalid_interpolation_is_a_problem_of_the_file(self, tmp_path: Path) -> None:
        assert "is not an interpolation" in only(GOOD + "gconfig:\n  n_samples: ${seed\n", tmp_path)

    def test_a_missing_environment_variable_is_one_problem(self, tmp_path: Path) -> None:
        assert "NO_SUCH_VARIABLE" in only(GOOD + "tokenizer_path: ${oc.env:NO_SUCH_VARIABLE}\n", tmp_path)

    def test_environment_values_are_parsed_like_yaml(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "f.yaml"
        file.write_text(GOOD + "seed: ${oc.env:MY_SEED}\n")
        monkeypatch.setenv("MY_SEED", "7")
        assert load(file, ["actor.lr=${oc.env:NOT_THERE,3e-4}", "trial_name=${oc.env:MY_SEED}"]).get("seed") == 7
        monkeypatch.setenv("MY_SEED", "seven")
        assert "'seven' is not an integer" in only(GOOD + "seed: ${oc.env:MY_SEED}\n", tmp_path)
        monkeypatch.delenv("MY_SEED")
        message = only(GOOD + "seed: ${oc.env:MY_SEED}\n", tmp_path)
        assert "the environment variable MY_SEED is not set; write ${oc.env:MY_SEED,default}" in message

    def test_a_section_can_refer_to_another_but_not_be_set_below_it(self, tmp_path: Path) -> None:
        file = tmp_path / "f.yaml"
        file.write_text("experiment_name: e\nactor: {path: m, lr: 0.5}\ncritic: {optimizer: '${actor.optimizer}'}\n")
        assert load(file).get("critic.optimizer.lr") == 0.5
        with pytest.raises(ConfigError, match="keys below a reference cannot be set"):
            load(file, ["critic.lr=1"])


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "is empty"),
            ("# only a comment\n", "is empty"),
            ("- a\n- b\n", "must be a mapping"),
            ("just text\n", "must be a mapping"),
            ("a: b: c\n", "is not YAML"),
            ("a: [1, 2\n", "is not YAML"),
            (
                "a: 1\n\n# b\n  b: 2\n",
                "is not YAML: line 4 is indented deeper than line 1, which has a value already: ",
            ),
            ("a:  # x\n  b: 1\n   c: 2\n", "line 3 is indented deeper than line 2, which has a value already: mapping"),
            (
                "a:\n    b: 1\n  c: 2\n",
                "line 3 is indented less than line 2 but deeper than line 1: ",
            ),
            ("a:\n  b: 1\nc:\n    - d\n  - e\n", "line 5 is indented less than line 4 but deeper than line 3: "),
            ("  a: 1\nb: 2\n", "line 2 is indented less than line 1: "),
            ("actor:\n\tpath: m\n", "a tab is used for indentation"),
            (b"experiment_name: \xff\xfe\n", "is not UTF-8"),
            ("experiment_name: &a [*a]\n", "refers to itself"),
            ("a: 1\nb: [*other, 2]\n", "f.yaml:2]: alias *other is not defined"),
            ("a: &a 1\nb: &a 2\n", "f.yaml:2]: anchor &a is defined twice; keep one"),
            ("experiment_name: !!python/object:os.system x\n", "tag"),
            ("experiment_name: e\n---\nactor: {}\n", "f.yaml:2]: contains more than one document"),
            ("a: " + "[" * 500 + "]" * 500, "levels deep"),
            ("a: " + "[" * 100_000 + "]" * 100_000, "levels deep"),
            ("a: [" + "1, " * 60_000 + "]", "values"),
            (
                "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
                + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(8)),
                "values",
            ),
            ("experiment_name: a\0b\n", "is not YAML"),
        ],
    )
    def test_a_file_that_cannot_be_read_is_one_clear_problem(
        self, tmp_path: Path, content: str | bytes, message: str
    ) -> None:
        assert message in only(content, tmp_path)

    @pytest.mark.parametrize("content", ["a: b: c\n", "a: [1,\n 2\nb: 3\n", "a:\n  - x\n  b: 1\n", "a: 'x\nb: 1\n"])
    def test_other_syntax_errors_name_no_indent(self, tmp_path: Path, content: str) -> None:
        assert "indented" not in only(content, tmp_path)

    def test_a_duplicate_key_is_refused_with_both_lines(self, tmp_path: Path) -> None:
        text = only("experiment_name: e\nactor:\n  path: m\n  lr: 1\n  lr: 2\n", tmp_path)
        assert text.startswith("actor.lr ")
        assert "f.yaml:5" in text
        assert "first on line 4" in text

    def test_a_key_below_an_alias_is_named_with_the_line_of_the_alias(self, tmp_path: Path) -> None:
        text = "experiment_name: e\nactor: {path: m, mb_spec: &spec {n_mbs: 1}}\nref:\n  optimizer: *spec\n"
        assert "ref.optimizer.n_mbs [" in (found := only(text, tmp_path))
        assert "f.yaml:4]" in found

    def test_a_missing_file_lists_the_existing_ones(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"Did you mean grpo\.yaml"):
            load("grpoo.yaml")
        (tmp_path / "benchmarks.yaml").touch()
        with pytest.raises(ConfigError, match=rf"Did you mean {tmp_path}/benchmarks\.yaml"):
            load(tmp_path / "benchmark.yaml")

    def test_a_directory_and_an_unreadable_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is a directory"):
            load(tmp_path)
        with pytest.raises(ConfigError, match="cannot be read"):
            load("/proc/self/mem")

    def test_a_broken_base_file_is_the_only_problem(self, tmp_path: Path) -> None:
        (tmp_path / "base.yaml").write_text("actor: [\n")
        found = problems("defaults: [base]\nexperiment_name: e\n", tmp_path)
        assert len(found) == 1
        assert found[0].key.endswith("base.yaml")

    def test_a_missing_required_value_is_one_problem(self, tmp_path: Path) -> None:
        assert only("actor: {path: m}\n", tmp_path).startswith("experiment_name: a value is required")


class TestContradictions:
    @pytest.mark.parametrize(
        ("override", "key", "other"),
        [
            ("saver.experiment_name=other", "saver.experiment_name", "experiment_name"),
            ("actor.temperature=0.3", "actor.temperature", "gconfig.temperature"),
            ("rollout.consumer_batch_size=77", "rollout.consumer_batch_size", "train_dataset.batch_size"),
            ("actor.group_size=77", "actor.group_size", "gconfig.n_samples"),
            ("gconfig.min_new_tokens=20000", "gconfig.min_new_tokens", "gconfig.max_new_tokens"),
            ("actor.eps_clip_higher=0.1", "actor.eps_clip_higher", "actor.eps_clip"),
            ("resume_step=3", "resume_step", "resume"),
            ("actor.weight_update_mode=adapter", "actor.weight_update_mode", "actor.use_lora"),
        ],
    )
    def test_contradicting_keys_name_each_other(self, tmp_path: Path, override: str, key: str, other: str) -> None:
        text = only(GOOD, tmp_path, override)
        assert text.startswith(f"{key} ")
        assert other in text

    def test_a_temperature_that_leaves_no_numbers_is_refused(self, tmp_path: Path) -> None:
        text = only(GOOD, tmp_path, "gconfig.temperature=1e-50")
        assert text.startswith("gconfig.temperature ") and "is 1e-50; use at least 0.001" in text

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            (
                "stop",
                ["x"] * (MAX_STOP_TEXTS + 1),
                f"has {MAX_STOP_TEXTS + 1} texts; servers support at most {MAX_STOP_TEXTS}",
            ),
            ("stop", ["x" * (MAX_STOP_LENGTH + 1)], f"has a text of {MAX_STOP_LENGTH + 1} characters"),
            ("stop", [""], "has an empty text"),
            ("stop_token_ids", [5] * (MAX_STOP_TOKENS + 1), f"has {MAX_STOP_TOKENS + 1} token ids"),
            ("temperature", 2e6, ""),
            ("max_new_tokens", 1 << 40, ""),
            ("n_samples", 1 << 20, ""),
        ],
    )
    def test_settings_that_every_server_refuses_are_refused_at_the_start(
        self, tmp_path: Path, key: str, value: object, words: str
    ) -> None:
        lines = [one.text() for one in problems(GOOD + f"gconfig: {json.dumps({key: value})}\n", tmp_path)]
        assert any(line.startswith(f"gconfig.{key}") and words in line for line in lines), lines
        fields = {"n": value} if key == "n_samples" else {"sampling": {key: value}}
        with pytest.raises(BadRequest):
            parse_group({"prompt": [5], **fields}, vocab_size=60)

    def test_limits_that_leave_no_range_name_each_other(self, tmp_path: Path) -> None:
        text = only(GOOD, tmp_path, "actor.behav_imp_weight_floor=3", "actor.behav_imp_weight_cap=2")
        assert text.startswith("actor.behav_imp_weight_floor ") and "not below actor.behav_imp_weight_cap=2" in text

    def test_equal_copies_are_no_contradiction(self, tmp_path: Path) -> None:
        file = tmp_path / "f.yaml"
        file.write_text(GOOD + "saver: {experiment_name: e}\ngconfig: {temperature: 0.6}\n")
        assert load(file, ["actor.temperature=0.6"]).get("saver.experiment_name") == "e"


def test_all_problems_are_printed_sorted_with_exit_code_2_and_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("experiment_name: e\nzeta: 1\nactor:\n  use_lora: yes\n  lr: x\ngconfig: {n_samples: 0}\n")
    command = [sys.executable, "-m", "launcher", "--config", str(file), "actor.learning_rate=1", "rollout=vlm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    keys = [line.split(" ")[0] for line in done.stderr.splitlines()[:-1]]
    assert keys == sorted(keys)
    assert keys == ["actor.learning_rate", "actor.lr", "actor.use_lora", "gconfig.n_samples", "rollout", "zeta"]
    assert done.stderr.splitlines()[-1] == "6 problems; nothing was started."


def test_no_message_repeats_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(GOOD + "stats_logger: {wandb: {wandb_api_key: [topsecret]}}\n")
    with pytest.raises(ConfigError) as raised:
        load(file, ["stats_logger.swanlab.api_key=[topsecret]", "stats_logger.wandb=topsecret"])
    assert len(raised.value.problems) == 3
    assert "topsecret" not in str(raised.value)
