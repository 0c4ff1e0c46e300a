"""Known datasets bring their columns, prompt and reward: weaker than the user's file, stronger than its groups."""

import pytest

from areal_like.config.built_in import BUILT_IN
from areal_like.config.known_datasets import KNOWN_DATASETS, find_known, known_as
from areal_like.config.load import load
from areal_like.config.problems import ConfigError

GRPO = """
defaults:
  - task: addition
  - actor: tiny
  - _self_
experiment_name: mine
"""
SFT = """
experiment_name: mine
train_dataset:
  type: sft
model:
  path: some/model
"""


@pytest.fixture
def written(tmp_path):
    def write(text, *overrides):
        (tmp_path / "mine.yaml").write_text(text)
        return load(tmp_path / "mine.yaml", overrides)

    return write


def problems_of(written, *overrides):
    with pytest.raises(ConfigError) as caught:
        written(GRPO, *overrides)
    return {problem.key: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("/shared/datasets/GSM8K", "gsm8k"),
        ("data/gsm8k/train.jsonl", "gsm8k"),
        ("gsm8k.jsonl", "gsm8k"),
        ("HuggingFaceH4/MATH-500", "math"),
        ("EleutherAI/hendrycks_math", "math"),
        ("AReaL-boba-106k.jsonl", "boba"),
        ("inclusionAI/AReaL-boba-Data", "boba"),
        ("inclusionAI/AReaL-boba-2-RL-Code", None),
        ("AReaL-boba-2-8B-subset", None),
        ("/tmp/areal/torl_data/train.parquet", "torl"),
        ("data/countdown/train.jsonl", "countdown"),
        ("Anthropic/hh-rlhf", "hh-rlhf"),
        ("cais/mmlu", "mmlu"),
        ("allenai/ai2_arc", "arc"),
        ("mathematics.jsonl", None),
        ("org/my-gsm8k-like", None),
    ],
)
def test_a_dataset_is_known_by_a_part_of_its_path(path, name):
    assert find_known([path], KNOWN_DATASETS) == ([name] if name else [])


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("our/math-500", ["mine"]),
        ("our/gsm8k/math-500.jsonl", ["longer"]),
        ("our/math-500-v2", ["mine", "same"]),
        ("HuggingFaceH4/MATH-500", ["math"]),
        ("data/gsm8k/mmlu.jsonl", ["gsm8k"]),
    ],
)
def test_a_path_of_several_entries_is_the_users_then_the_one_with_the_longest_name(path, names):
    own = {
        "mine": {"paths": ["our", "our/math-500", "our/math-500-v*"]},
        "longer": {"paths": ["our/gsm8k/*"]},
        "same": {"paths": ["our/math-*00-v2"]},
    }
    assert known_as(path, {**KNOWN_DATASETS, **own}) == names


@pytest.mark.parametrize("name", KNOWN_DATASETS)
def test_every_entry_is_valid_and_names_what_is_built_in(written, name):
    loaded = written(GRPO, "~task", "train_dataset.path=rows.jsonl", f"train_dataset.known={name}")
    reward = loaded.get("reward.name")
    assert reward is None or reward in BUILT_IN["reward"]
    assert (
        written(SFT, "train_dataset.path=rows.jsonl", f"train_dataset.known={name}").get("train_dataset.type") == "sft"
    )


def test_gsm8k_brings_columns_prompt_and_reward(written):
    loaded = written(GRPO, "train_dataset.path=openai/gsm8k")
    assert loaded.get("train_dataset.fields") == {"prompt": "question"}
    assert loaded.get("train_dataset.prompt_template").startswith("{prompt}\n")
    assert loaded.get("train_dataset.as_chat") is True
    assert loaded.get("reward.name") == "math", "although the group of the file names the reward of its task"
    assert loaded.origin("reward.name").kind == "known dataset"
    assert loaded.origin("reward.name").where == "openai/gsm8k is known as gsm8k"


def test_rows_to_imitate_stay_plain_texts(written):
    loaded = written(SFT, "train_dataset.path=openai/gsm8k")
    assert loaded.get("train_dataset.fields") == {"prompt": "question"}
    assert (loaded.get("train_dataset.as_chat"), loaded.get("train_dataset.prompt_template")) == (False, None)


@pytest.mark.parametrize("path", ["org/other", "addition", ""])
def test_other_data_bring_nothing(written, path):
    loaded = written(GRPO, f"train_dataset.path={path!r}")
    assert (loaded.get("reward.name"), loaded.get("train_dataset.fields")) == ("addition", {})


def test_the_users_file_has_priority(written):
    body = "reward:\n  name: exact_of.py:f\ntrain_dataset:\n  path: openai/gsm8k\n  as_chat: false\n"
    with pytest.raises(ConfigError, match=r"there is no file exact_of\.py"):
        written(GRPO + body)
    loaded = written(GRPO + body, "reward.name=addition", "train_dataset.prompt_template='{prompt}='")
    assert loaded.get("train_dataset.as_chat") is False
    assert loaded.get("train_dataset.prompt_template") == "{prompt}="
    assert loaded.get("train_dataset.fields") == {"prompt": "question"}


def test_a_group_that_names_the_dataset_has_priority(written, tmp_path):
    (tmp_path / "task").mkdir()
    own = "# @package _global_\ntrain_dataset:\n  path: openai/gsm8k\nreward:\n  name: addition\n"
    (tmp_path / "task" / "own.yaml").write_text(own)
    loaded = written(GRPO.replace("task: addition", "task: own"))
    assert loaded.get("reward.name") == "addition"
    assert loaded.get("train_dataset.fields") == {"prompt": "question"}


def test_a_task_of_the_file_keeps_its_reward(written):
    loaded = written(GRPO + "task:\n  name: counting\nreward:\n  name: null\n", "train_dataset.path=openai/gsm8k")
    assert loaded.get("reward.name") is None


def test_a_weighted_sum_of_rewards_is_kept(written):
    loaded = written(GRPO, "~task", "train_dataset.path=openai/gsm8k", "reward.parts=[{name: exact}]")
    assert loaded.get("reward.name") is None and loaded.get("train_dataset.fields") == {"prompt": "question"}


def test_none_turns_it_off_and_a_name_turns_it_on(written):
    gsm8k = ("train_dataset.path=openai/gsm8k", "valid_dataset.path=openai/gsm8k")
    off = written(GRPO, *gsm8k, "train_dataset.known=none")
    assert off.get("train_dataset.fields") == off.get("valid_dataset.fields") == {}
    loaded = written(GRPO, "train_dataset.path=rows.jsonl", "train_dataset.known=gsm8k")
    assert loaded.get("train_dataset.fields") == {"prompt": "question"}


def test_evaluation_data_follow_unless_they_are_known_as_another(written):
    train = "train_dataset.path=openai/gsm8k"
    loaded = written(GRPO, train, "valid_dataset.path=openai/gsm8k")
    assert loaded.get("valid_dataset.fields") == {"prompt": "question"}
    loaded = written(GRPO, train, "valid_dataset.path=HuggingFaceH4/MATH-500")
    assert loaded.get("valid_dataset.fields") == {"prompt": "problem", "answer": "solution"}
    assert [loaded.get(f"{name}_dataset.answer_from") for name in ("valid", "train")] == ["boxed", "hashes"]


def test_a_path_may_be_a_reference(written):
    loaded = written(GRPO + "train_dataset:\n  path: ${valid_dataset.path}\nvalid_dataset:\n  path: openai/gsm8k\n")
    assert loaded.get("reward.name") == "math"


class TestBenchmarks:
    TEXT = GRPO + "evaluator:\n  benchmarks:\n    - name: held-out\n      path: {}\n      {}\n"

    def of(self, written, path, more="n_samples: 1", *words):
        (benchmark,) = written(self.TEXT.format(path, more), *words).config.evaluator.benchmarks
        return benchmark

    def test_a_known_dataset_brings_columns_and_reward(self, written):
        benchmark = self.of(written, "HuggingFaceH4/MATH-500")
        assert benchmark.fields == {"prompt": "problem", "answer": "solution"} and benchmark.as_chat
        assert benchmark.reward.name == "math"

    def test_what_it_sets_itself_has_priority(self, written):
        benchmark = self.of(written, "openai/gsm8k", "reward: {parts: [{name: exact}]}")
        assert benchmark.reward.name is None and benchmark.fields == {"prompt": "question"}
        benchmark = self.of(written, "openai/gsm8k", "as_chat: false")
        assert not benchmark.as_chat and benchmark.reward.name == "math"

    def test_the_table_of_the_user_and_references_apply(self, written):
        table = "+known_datasets.ours={paths: [org/ours], fields: {prompt: q}}"
        benchmark = self.of(written, "${valid_dataset.path}", "n_samples: 1", "valid_dataset.path=org/ours", table)
        assert benchmark.fields == {"prompt": "q"} and benchmark.reward.name is None

    def test_other_data_and_none_bring_nothing(self, written):
        assert self.of(written, "rows.jsonl").fields == self.of(written, "openai/gsm8k", "known: none").fields == {}

    def test_an_unknown_name_is_an_error(self, written):
        with pytest.raises(ConfigError, match=r"evaluator\.benchmarks\.0\.known.*did you mean gsm8k"):
            self.of(written, "rows.jsonl", "known: gsm8")


class TestTableOfTheUser:
    OWN = GRPO + (
        "known_datasets:\n"
        "  ours:\n"
        "    paths: [org/ours*]\n"
        "    fields: {prompt: q}\n"
        "    rl: {reward: addition, system_prompt: Be brief.}\n"
    )

    def test_an_entry_is_found_like_a_shipped_one(self, written):
        loaded = written(self.OWN.replace("reward: addition", "reward: counting"), "train_dataset.path=x.jsonl")
        assert loaded.get("reward.name") == "addition", "its entry is not used"
        loaded = written(self.OWN, "train_dataset.path=org/ours-v2")
        assert loaded.get("train_dataset.fields") == {"prompt": "q"}
        assert loaded.get("train_dataset.system_prompt") == "Be brief."
        assert loaded.origin("reward.name").where == "org/ours-v2 is known as ours"

    def test_an_entry_may_name_a_workflow(self, written):
        own = self.OWN.replace("reward: addition,", "reward: addition, workflow: multi_turn,")
        loaded = written(own, "train_dataset.path=org/ours-v2")
        assert loaded.get("workflow.name") == "multi_turn"
        assert loaded.origin("workflow.name").where == "org/ours-v2 is known as ours"
        named = written(own, "train_dataset.path=org/ours-v2", "workflow.name=single_turn")
        assert named.get("workflow.name") == "single_turn"

    def test_an_entry_has_priority_over_a_shipped_one_with_a_longer_name(self, written):
        loaded = written(self.OWN, "train_dataset.path=org/ours/hendrycks_math")
        assert loaded.get("train_dataset.fields") == {"prompt": "q"}

    def test_a_path_of_two_entries_needs_a_choice(self, written):
        words = ("+known_datasets.theirs={paths: ['org/ours*']}", "train_dataset.path=org/ours-v2")
        with pytest.raises(ConfigError, match="org/ours-v2 is known as ours and theirs: choose one") as caught:
            written(self.OWN, *words)
        choices = "train_dataset.known=ours or train_dataset.known=theirs, or train_dataset.known=none"
        assert choices in str(caught.value)
        chosen = written(self.OWN, *words, "train_dataset.known=ours")
        assert chosen.get("train_dataset.fields") == {"prompt": "q"}

    def test_an_entry_of_the_same_name_replaces_the_shipped_one(self, written):
        own = GRPO + "known_datasets:\n  gsm8k:\n    paths: [gsm8k]\n    fields: {prompt: q}\n"
        loaded = written(own, "train_dataset.path=data/gsm8k/rows.jsonl")
        assert (loaded.get("train_dataset.fields"), loaded.get("reward.name")) == ({"prompt": "q"}, "addition")


@pytest.mark.parametrize(
    ("override", "key", "reason"),
    [
        ("train_dataset.known=gsm8", "train_dataset.known", "did you mean gsm8k?"),
        (
            "train_dataset.path=[openai/gsm8k,cais/mmlu]",
            "train_dataset.path",
            "known as gsm8k, mmlu: convert them to the same columns, and set train_dataset.known=none",
        ),
        ("+known_datasets.ours=3", "known_datasets.ours", "is not a mapping"),
        ("+known_datasets.ours={path: [a]}", "known_datasets.ours.path", "did you mean paths?"),
        ("+known_datasets.ours={rl: {rewards: a}}", "known_datasets.ours.rl.rewards", "did you mean reward?"),
        ("+known_datasets.ours={paths: a}", "known_datasets.ours.paths", "write [org/name]"),
        ("+known_datasets.ours={rl: a}", "known_datasets.ours.rl", "is not a mapping"),
    ],
)
def test_a_wrong_entry_is_an_error(written, override, key, reason):
    assert reason in problems_of(written, override)[key]


def test_a_wrong_value_of_an_entry_names_its_place(written):
    entry = "+known_datasets.ours={paths: [org/ours], as_chat: maybe}"
    with pytest.raises(ConfigError) as caught:
        written(GRPO, entry, "train_dataset.path=org/ours")
    (problem,) = caught.value.problems
    assert (problem.key, problem.where) == ("train_dataset.as_chat", "known_datasets.ours")
