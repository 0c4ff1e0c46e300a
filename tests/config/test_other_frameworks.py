"""Files of verl and TRL are recognized, with one message that names the keys here."""

from pathlib import Path
from textwrap import dedent

import pytest

from areal_like.config.dialects.other_frameworks import TRL_KEYS, VERL_KEYS, other_framework_message
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.config.schema import Schema
from tests.support.planning import load_text

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
VERL = """
    actor_rollout_ref:
      model: {path: Qwen/Qwen3-0.6B}
      actor: {optim: {lr: 1.0e-6}, ppo_mini_batch_size: 64}
      rollout: {name: vllm, n: 8}
    algorithm: {adv_estimator: grpo}
    data: {train_files: train.parquet, train_batch_size: 256}
    trainer: {total_epochs: 3}
"""
TRL = """
    model_name_or_path: Qwen/Qwen3-0.6B
    learning_rate: 1.0e-6
    per_device_train_batch_size: 8
    num_generations: 8
"""


@pytest.mark.parametrize(
    ("text", "framework", "words"),
    [
        (VERL, "verl", ["grpo.yaml", "actor_rollout_ref.actor.optim.lr is actor.optimizer.lr here"]),
        (VERL.replace("adv_estimator: grpo", "adv_estimator: gae"), "verl", ["ppo.yaml"]),
        ("data: {train_files: a.parquet}\noptim: {lr: 1}", "verl", ["sft.yaml", "optim.lr is model.optimizer.lr here"]),
        (TRL, "TRL", ["grpo.yaml", "num_generations is gconfig.n_samples here"]),
        (
            "model_name_or_path: a/b\nper_device_train_batch_size: 8\nlearning_rate: 1.0",
            "TRL",
            ["sft.yaml", "learning_rate is model.optimizer.lr here"],
        ),
    ],
)
def test_one_message_names_the_framework_and_the_keys_here(text: str, framework: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_text(dedent(text))
    (problem,) = refused.value.problems
    assert problem.message.startswith(f"this is a configuration of {framework} (it has ")
    assert "docs/configuration.md#files-of-verl-and-trl" in problem.message
    for word in words:
        assert word in problem.message


PRIME_RL = """
    max_steps: 100
    model: {name: Qwen/Qwen3-0.6B}
    trainer: {optim: {lr: 1.0e-6}}
    orchestrator: {batch_size: 128, rollouts_per_example: 8, env: [{id: reverse-text}]}
    inference: {parallel: {tp: 2}}
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PRIME_RL, ["experiments/grpo.yaml", "orchestrator.rollouts_per_example is gconfig.n_samples here"]),
        ("model: a/b\nmax_steps: 9\nrollouts_per_example: 8\nbatch_size: 4", ["model is actor.path here"]),
        (
            "max_steps: 9\nmodel: {name: a/b}\noptim: {lr: 1.0}\ndata: {name: x}",
            ["experiments/sft.yaml", "optim.lr is model.optimizer.lr here"],
        ),
    ],
)
def test_a_file_of_prime_rl_written_as_yaml_is_one_message(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_text(dedent(text))
    (problem,) = refused.value.problems
    assert problem.message.startswith("this is a configuration of prime-rl (it has ")
    for word in (*words, "see docs/keys.md"):
        assert word in problem.message


WITH_KL = "(with actor.kl_in=loss actor.kl_estimator=k3)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TRL, ["train_dataset.batch_size here (the prompts of a whole step, on all devices)"]),
        (TRL + "    beta: 0.04\n", [f"beta is actor.kl_ctl here {WITH_KL}"]),
        (TRL + "    beta: 0.0\n", ["beta is actor.kl_ctl here;"]),
        (TRL + "    gradient_accumulation_steps: 4\n", ["n_mbs here (the micro-batches that a step is divided into)"]),
        (VERL.replace("ppo_mini_batch_size: 64", "kl_loss_coef: 0.001"), [f"is actor.kl_ctl here {WITH_KL}"]),
    ],
)
def test_the_message_names_values_that_mean_something_else_here(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_text(dedent(text))
    for word in words:
        assert word in refused.value.problems[0].message


def test_the_kl_of_the_message_is_accepted_here() -> None:
    file = "defaults: [actor: tiny, task: addition]\nexperiment_name: e"
    actor = load_text(file, "actor.kl_ctl=0.04", "actor.kl_in=loss", "actor.kl_estimator=k3").config.actor
    assert (actor.kl_in, actor.kl_estimator) == ("loss", "k3")
    assert "`actor.kl_in=loss actor.kl_estimator=k3`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"num_generations": 8},
        {"experiment_name": "x", "num_generations": 8, "model_name_or_path": "a/b"},
        {"experiment_name": "x", "trainer": {"total_epochs": 3}},
        {"defaults": ["grpo", "_self_"], "dataset_name": "x", "output_dir": "y"},
        {"actor": {"path": "a/b"}, "data": {"train_batch_size": 8}},
        {"actor": {"path": "a/b"}, "max_steps": 3, "wandb": {"project": "p"}},
        {"max_steps": 3},
    ],
)
def test_a_native_file_with_a_foreign_key_is_not_taken_for_another_frameworks(body: dict[str, object]) -> None:
    assert other_framework_message(body) is None


def test_keys_of_other_frameworks_map_to_keys_here_and_are_on_the_page() -> None:
    known = {name for cls in EXPERIMENTS.values() for name in Schema.of(cls).names()}
    text = PAGE.read_text(encoding="utf-8")
    for old, new in [*VERL_KEYS.items(), *TRL_KEYS.items()]:
        assert new in known
        assert f"| `{old}` | `{new}` |" in text or old.startswith("model.")


OWN_CLASS = """
from dataclasses import dataclass
from areal_like.config.experiment import GRPOConfig

@dataclass(kw_only=True)
class Mine(GRPOConfig):
    dataset_name: str = "a"
    output_dir: str = "b"
"""


@pytest.mark.parametrize("head", ["defaults: [grpo, _self_]\n", "actor: {path: some/model}\ntask: {name: addition}\n"])
def test_keys_of_the_users_own_class_are_not_taken_for_another_frameworks(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "class_with_trl_keys.py").write_text(OWN_CLASS, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own.yaml").write_text(f"{head}dataset_name: x\noutput_dir: y\n", "utf-8")
    words = ["experiment_name=mine", "rollout.backend=embedded"]
    configuration = load(tmp_path / "own.yaml", words, schema="class_with_trl_keys:Mine")
    assert (configuration.get("dataset_name"), configuration.get("output_dir")) == ("x", "y")
