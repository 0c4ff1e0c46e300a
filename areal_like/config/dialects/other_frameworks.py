"""Recognises YAML files of verl, TRL and prime-rl, and names the keys here that replace theirs."""

from collections.abc import Mapping
from typing import Any

from areal_like.config.dotted_path import value_at

PAGE = "docs/configuration.md#files-of-verl-and-trl"
PRIME_RL_PAGE = "docs/keys.md"
MAX_SHOWN = 6

VERL_KEYS: dict[str, str] = {
    "actor_rollout_ref.model.path": "actor.path",
    "actor_rollout_ref.actor.optim.lr": "actor.optimizer.lr",
    "actor_rollout_ref.actor.clip_ratio": "actor.eps_clip",
    "actor_rollout_ref.actor.kl_loss_coef": "actor.kl_ctl",
    "actor_rollout_ref.actor.entropy_coeff": "actor.entropy_coef",
    "actor_rollout_ref.rollout.n": "gconfig.n_samples",
    "actor_rollout_ref.rollout.temperature": "gconfig.temperature",
    "algorithm.gamma": "actor.discount",
    "algorithm.lam": "actor.gae_lambda",
    "data.train_files": "train_dataset.path",
    "data.val_files": "valid_dataset.path",
    "data.train_batch_size": "train_dataset.batch_size",
    "data.max_prompt_length": "train_dataset.max_length",
    "data.max_response_length": "gconfig.max_new_tokens",
    "model.partial_pretrain": "model.path",
    "optim.lr": "model.optimizer.lr",
    "trainer.total_epochs": "total_train_epochs",
    "trainer.total_training_steps": "total_train_steps",
    "trainer.nnodes": "cluster.n_nodes",
    "trainer.n_gpus_per_node": "cluster.n_gpus_per_node",
    "trainer.save_freq": "saver.freq_steps",
    "trainer.test_freq": "evaluator.freq_steps",
    "trainer.project_name": "experiment_name",
    "trainer.experiment_name": "trial_name",
    "trainer.default_local_dir": "cluster.fileroot",
}
"""Key of verl -> key here."""

TRL_KEYS: dict[str, str] = {
    "model_name_or_path": "actor.path",
    "learning_rate": "actor.optimizer.lr",
    "num_generations": "gconfig.n_samples",
    "max_completion_length": "gconfig.max_new_tokens",
    "temperature": "gconfig.temperature",
    "beta": "actor.kl_ctl",
    "epsilon": "actor.eps_clip",
    "dataset_name": "train_dataset.path",
    "per_device_train_batch_size": "train_dataset.batch_size",
    "gradient_accumulation_steps": "actor.mb_spec.n_mbs",
    "num_train_epochs": "total_train_epochs",
    "max_steps": "total_train_steps",
    "reward_funcs": "reward.name",
    "save_steps": "saver.freq_steps",
    "eval_steps": "evaluator.freq_steps",
    "run_name": "trial_name",
    "output_dir": "cluster.fileroot",
}
"""Key of TRL -> key here; in supervised files `actor` is `model`."""

REMARKS: dict[str, str] = {
    "actor_rollout_ref.actor.kl_loss_coef": "with actor.kl_in=loss actor.kl_estimator=k3",
    "beta": "with actor.kl_in=loss actor.kl_estimator=k3",
    "per_device_train_batch_size": "the prompts of a whole step, on all devices",
    "gradient_accumulation_steps": "the micro-batches that a step is divided into",
}
"""Key of another framework -> how the value here differs, or what has to be set with it."""

_VERL_MARKS = ("data.train_files", "algorithm.adv_estimator", "trainer.total_epochs")
_TRL_MARKS = (
    *("per_device_train_batch_size", "model_name_or_path", "num_generations", "max_completion_length"),
    *("num_train_epochs", "gradient_accumulation_steps", "dataset_name", "reward_funcs", "output_dir"),
)
_PRIME_RL_MARKS = (
    *("orchestrator", "inference", "trainer.model", "trainer.optim", "trainer_gpu_ids", "inference_gpu_ids"),
    *("rollouts_per_example", "async_level", "max_async_level", "weight_broadcast", "ckpt", "env", "env_mix", "buffer"),
    *("sampling", "optim", "seq_len", "model.name", "data.fake", "wandb", "max_steps"),
)
_OWN_SECTIONS = ("actor", "gconfig", "train_dataset")
_TRL_REINFORCEMENT = ("num_generations", "max_completion_length", "reward_funcs", "beta", "epsilon")


def other_framework_message(body: Mapping[str, Any]) -> str | None:
    """The message for a file of verl, TRL or prime-rl; None for other files."""
    marks = [key for key in _VERL_MARKS if value_at(body, key) is not None]
    if "actor_rollout_ref" in body:
        return _message("verl", ["actor_rollout_ref", *marks], _verl_template(body), VERL_KEYS, body)
    if "experiment_name" in body or "defaults" in body:
        return None
    if marks:
        return _message("verl", marks, _verl_template(body), VERL_KEYS, body)
    marks = [key for key in _TRL_MARKS if key in body]
    if len(marks) < 2:
        return _prime_rl_message(body)
    if any(key in body for key in _TRL_REINFORCEMENT):
        return _message("TRL", marks, "grpo", TRL_KEYS, body)
    supervised = {key: f"model.{new.removeprefix('actor.')}" for key, new in TRL_KEYS.items() if "actor." in new}
    return _message("TRL", marks, "sft", {**TRL_KEYS, **supervised}, body)


def _verl_template(body: Mapping[str, Any]) -> str:
    if "actor_rollout_ref" not in body and "algorithm" not in body:
        return "sft"
    return "ppo" if value_at(body, "algorithm.adv_estimator") == "gae" else "grpo"


def _prime_rl_message(body: Mapping[str, Any]) -> str | None:
    """For a file of one program (orchestrator, trainer, inference), or of all with one section for each."""
    marks = [key for key in _PRIME_RL_MARKS if value_at(body, key) is not None]
    if len(marks) < 2 or any(section in body for section in _OWN_SECTIONS):
        return None
    from areal_like.config.dialects.prime_rl.keys import PATHS

    training, sampling, engine = (PATHS["prime_rl", file] for file in ("train", "orch", "infer"))
    keys = {**sampling, **training} | (PATHS["prime_hosted", ""] if isinstance(body.get("model"), str) else {})
    supervised = "data" in body and not any(key in body for key in ("orchestrator", "env", "rollouts_per_example"))
    if supervised:
        keys = {old: f"model.{new.removeprefix('actor.')}" if "actor." in new else new for old, new in keys.items()}
    for section, table in (("trainer", training), ("orchestrator", sampling), ("inference", engine)):
        keys |= {f"{section}.{old}": new for old, new in table.items()}
    leaves = {old: new for old, new in keys.items() if not isinstance(value_at(body, old), dict | list)}
    return _message("prime-rl", marks, "sft" if supervised else "grpo", leaves, body, PRIME_RL_PAGE)


def _message(
    framework: str,
    marks: list[str],
    template: str,
    keys: Mapping[str, str],
    body: Mapping[str, Any],
    page: str = PAGE,
) -> str:
    present = {old: new for old, new in keys.items() if value_at(body, old) is not None}
    remarks = {old: f" ({REMARKS[old]})" for old in present if old in REMARKS and value_at(body, old)}
    first = sorted(present, key=lambda old: old not in remarks)[:MAX_SHOWN]
    shown = [f"{old} is {present[old]} here{remarks.get(old, '')}" for old in first]
    examples = f", such as: {', '.join(shown)}" if shown else ""
    return (
        f"this is a configuration of {framework} (it has {', '.join(marks)}), which cannot be read: start from "
        f"experiments/{template}.yaml and copy the values that you need{examples}; see {page}"
    )
