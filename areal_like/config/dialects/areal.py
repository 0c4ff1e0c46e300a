"""AReaL's files: kind of experiment, keys of other versions and of example classes, and why a run cannot start.

`infer_experiment`, `legacy_file_message` and `subclass_keys` get the parsed file, the checks the composed
values. None of them opens a file.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from areal_like.config.checks.registry import Check
from areal_like.config.dotted_path import value_at
from areal_like.config.engines import engines
from areal_like.config.problems import Problem, Stage
from areal_like.config.sections.data import paths_of

_MEGATRON = "holds settings of Megatron, and training here runs on FSDP2; remove it"

FOREIGN_SECTIONS: dict[str, str] = {f"{owner}.megatron": _MEGATRON for owner in ("actor", "ref", "critic", "model")}
"""Sections of AReaL without counterpart: accepted as maps; the plan reports the reason."""

SUBCLASS_KEYS: dict[str, str] = {
    "n_trajs": "multi-turn math and deep research",
    "max_turns": "multi-turn math and search agent",
    "max_tokens_per_trajectory": "multi-turn math and deep research",
    "max_llm_calls_per_run": "deep research",
    "judge_engine": "deep research",
    "log_agent_stats": "deep research",
    "tir": "tool-integrated reasoning",
}
"""Top-level keys that AReaL's examples declare in subclasses -> those examples."""

BASE_VERSION = "v0.3.4"
"""The version of AReaL whose keys have the same paths here."""

DROPPED_KEYS: dict[str, str] = {
    "group_adv_norm": "set actor.adv_norm.mean_level=group and actor.adv_norm.std_level=group for true, and leave it "
    "out for false",
    "group_reward_norm": "set actor.reward_norm.mean_level=group and actor.reward_norm.std_level=group for true, and "
    "leave it out for false",
    "server_only": "leave it out; `python -m launcher serve --config FILE` starts only the servers",
}
"""Last part of keys that AReaL has removed before BASE_VERSION -> what to write instead."""

NEWER_KEYS: dict[str, str] = {
    "actor.archon": "leave it out",
    "actor.behave_imp_weight_mode": "set actor.behav_imp_weight_mode instead",
    "actor.enable_tree_training": "leave it out",
    "actor.fsdp.memory_efficient_load": "leave it out",
    "actor.fsdp.optim_step_prefetch_layers": "leave it out",
    "actor.fsdp.per_layer_optim_step": "leave it out",
    "actor.fsdp.shard_vision_across_sp": "leave it out",
    "actor.importance_sampling_level": "set actor.ratio.level instead",
    "actor.m2_threshold": "leave it out",
    "actor.mb_spec.n_mbs_divisor": "leave it out",
    "actor.mb_spec.packing_algorithm": "leave it out",
    "actor.offload": "leave it out",
    "actor.prox_logp_method": "leave it out",
    "actor.rejection_sampling": "set actor.behav_imp_weight_cap instead",
    "actor.sapo_tau_neg": "set actor.loss=sapo instead; its temperatures are arguments in actor.loss_args",
    "actor.sapo_tau_pos": "set actor.loss=sapo instead; its temperatures are arguments in actor.loss_args",
    "actor.scheduling_spec": "leave it out",
    "actor.scheduling_strategy": "leave it out",
    "actor.use_kernels": "leave it out",
    "actor.use_sapo_loss": "set actor.loss=sapo instead of true, and leave it out for false",
    "dynamic_bs": "leave it out",
    "enable_offload": "leave it out",
    "eval_gconfig": "leave it out",
    "evaluator.eval_before_train": "leave it out",
    "gconfig.lora_name": "leave it out",
    "gconfig.use_beam_search": "leave it out",
    "memory_profiler": "leave it out, or use the section profiler",
    "perf_tracer": "leave it out, or use the section profiler",
    "recover.no_load_optim": "leave it out",
    "recover.no_save_optim": "leave it out",
    "rollout.agent": "leave it out",
    "rollout.fileroot": "leave it out; cluster.fileroot is the root of all files",
    "rollout.openai": "leave it out",
    "rollout.return_routed_experts": "leave it out",
    "rollout.scheduling_spec": "leave it out",
    "rollout.scheduling_strategy": "leave it out",
    "rollout.tokenizer_path": "leave it out; tokenizer_path is for all processes",
    "rollout.use_lora": "leave it out; actor.use_lora is for trainer and servers",
    "saver.mode": "leave it out",
    "scheduler.type": "leave it out; cluster.type says where processes run",
    "stats_logger.trackio": "leave it out",
    "teacher": "leave it out",
    "train_dataset.dataset_kwargs": "leave it out",
    "train_dataset.num_dataset_workers": "leave it out",
}
"""Keys that AReaL added after BASE_VERSION -> what to do. `actor` stands for every model that is trained,
`train_dataset` for both datasets. `EngineKeys.newer` has those of an engine."""

_SAME_KEYS = {**dict.fromkeys(("critic", "ref", "model"), "actor"), "valid_dataset": "train_dataset"}
_UNREADABLE_SUFFIXES = (".arrow", ".csv", ".tsv", ".xlsx", ".zip", ".gz", ".zst")
_VISION_MODEL = re.compile(
    r"(?:^|[-_.\d])(?:vlm?|vision)(?:[-_.\d]|$)|internvl|smolvlm|llava|pixtral|paligemma|idefics|minicpm-v",
    re.IGNORECASE,
)
_VISION_DATA = re.compile(r"clevr|geometry3k|geo3k", re.IGNORECASE)

_LEGACY_KEYS = ("exp_ctrl", "torch_cache_mysophobia", "actor_train", "actor_inf", "ref_inf")
_LEGACY_COMPANIONS_OF_MODE = ("recover_mode", "recover_retries", "dataset", "ppo", "wandb", "ray_temp_path")
_LEGACY_MODELS = ("actor", "critic", "ref", "rew", "model")
_LEGACY_HOMES = {
    "mode": "cluster.type",
    "dataset.path": "train_dataset.path",
    "dataset.train_path": "train_dataset.path",
    "dataset.valid_path": "valid_dataset.path",
    "dataset.train_bs_n_seqs": "train_dataset.batch_size",
    "dataset.max_prompt_len": "train_dataset.max_length",
    "group_size": "gconfig.n_samples",
    "ppo.gen.max_new_tokens": "gconfig.max_new_tokens",
    "ppo.gen.temperature": "gconfig.temperature",
    "ppo.ppo_n_minibatches": "actor.ppo_n_minibatches",
    "ppo.eps_clip": "actor.eps_clip",
    "ppo.kl_ctl": "actor.kl_ctl",
    "max_head_offpolicyness": "rollout.max_head_offpolicyness",
    "max_concurrent_rollouts": "rollout.max_concurrent_rollouts",
    "actor_train.mb_spec": "actor.mb_spec",
    "allocation.mb_spec": "model.mb_spec",
    "exp_ctrl.total_train_epochs": "total_train_epochs",
    "exp_ctrl.save_freq_epochs": "saver.freq_epochs",
    "exp_ctrl.save_freq_steps": "saver.freq_steps",
    "exp_ctrl.ckpt_freq_secs": "recover.freq_secs",
    "recover_mode": "recover.mode",
    "wandb": "stats_logger.wandb",
}


def infer_experiment(body: Mapping[str, Any]) -> str:
    """The kind of experiment, from the sections of a file."""
    if body.get("critic") is not None:
        return "ppo"
    if body.get("actor") is not None:
        return "grpo"
    dataset_type = value_at(body, "train_dataset.type")
    if dataset_type == "rw":
        return "reward_model"
    if "model" in body or dataset_type == "sft":
        return "sft"
    return "grpo"


def legacy_file_message(body: Mapping[str, Any]) -> str | None:
    """The message for a file of AReaL's first generation (realhf); None for other files."""
    marks = [key for key in _LEGACY_KEYS if key in body]
    marks += [f"{model}.type._class" for model in _LEGACY_MODELS if value_at(body, f"{model}.type._class") is not None]
    if "mode" in body and (marks or any(key in body for key in _LEGACY_COMPANIONS_OF_MODE)):
        marks.insert(0, "mode")
    if not marks:
        return None
    template = "grpo" if "ppo" in body else "sft"
    if value_at(body, "ppo.disable_value") is False:
        template = "ppo"
    homes = [f"{old} -> {new}" for old, new in _LEGACY_HOMES.items() if value_at(body, old) is not None]
    carry_over = f" and copy what you need: {', '.join(homes)}" if homes else ""
    return (
        f"this file is for realhf, AReaL's first generation (it has {', '.join(marks)}), a "
        f"different program; such files cannot be loaded here: start from experiments/{template}.yaml{carry_over}"
    )


def other_version_hint(key: str) -> str | None:
    """The hint for a key of an older or newer AReaL; None for other keys."""
    if (remedy := DROPPED_KEYS.get(key.rpartition(".")[2])) is not None:
        return f"removed from AReaL before {BASE_VERSION}; {remedy}"
    newer_keys = NEWER_KEYS | {name: remedy for keys in engines() for name, remedy in keys.newer.items()}
    path = key
    while path:
        top, _, below = path.partition(".")
        newer = f"{_SAME_KEYS.get(top, top)}.{below}" if below else top
        if newer in newer_keys:
            return f"a key of a newer AReaL than {BASE_VERSION}; {newer_keys[newer]}"
        path = path.rpartition(".")[0]
    return None


def subclass_keys(body: Mapping[str, Any]) -> dict[str, str]:
    """For each top-level key of `body` that an AReaL example declares in a subclass: how to declare it."""
    base = {"grpo": "GRPOConfig", "ppo": "PPOConfig", "sft": "SFTConfig", "reward_model": "RWConfig"}[
        infer_experiment(body)
    ]
    return {
        key: (
            f"{key} is declared by a separate class in AReaL's example ({examples}); write a dataclass that "
            f"extends areal_like.config.experiment.{base} with `{key}: {_annotation(body[key])}`, and name it with "
            f"--schema my.module:MyConfig"
        )
        for key, examples in SUBCLASS_KEYS.items()
        if key in body
    }


def foreign_sections(foreign: Iterable[str]) -> Iterator[Problem]:
    """`foreign` are the paths of a file in FOREIGN_SECTIONS, which are not part of the values."""
    read_paths = list(foreign)
    for section, reason in FOREIGN_SECTIONS.items():
        if any(path == section or path.startswith(section + ".") for path in read_paths):
            yield Problem(section, reason)


def vision_models(values: Mapping[str, Any]) -> Iterator[Problem]:
    seen: set[str] = set()
    for key in ("actor.path", "critic.path", "ref.path", "model.path"):
        path = value_at(values, key)
        if isinstance(path, str) and path not in seen and _VISION_MODEL.search(path.rstrip("/").rsplit("/", 1)[-1]):
            seen.add(path)
            yield Problem(key, f"{path} is a vision model by its name, and only text models are supported")
    for key in _dataset_paths(values):
        for path in paths_of(value_at(values, key)):
            if _VISION_DATA.search(path):
                yield Problem(key, f"{path} holds images by its name, and only text is supported")
    for keys in engines():
        if keys.images_key and value_at(values, keys.images_key):
            yield Problem(keys.images_key, "enables images in prompts, and only text is supported; set it to false")


def unreadable_data(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Data that cannot be read on any machine; the plan checks whether it exists."""
    brings_rows = value_at(values, "task.name") or value_at(values, "environments.train")
    for key in _dataset_paths(values):
        paths, section = paths_of(value_at(values, key)), key.removesuffix(".path")
        if value_at(values, f"{section}.fake") is not None:
            continue
        if not paths and not brings_rows:
            yield Problem(
                key, f"names no data; set {key}=FILE (.jsonl or .parquet), a folder or a name on the Hub, or task.name"
            )
        for path in (each for each in paths if each.endswith(_UNREADABLE_SUFFIXES)):
            yield Problem(key, f"{path} has an unsupported format; convert it to .parquet or .jsonl")


def missing_reward(values: Mapping[str, Any]) -> Iterator[Problem]:
    if "rollout" not in values:
        return
    named_by_others = value_at(values, "task.name") or value_at(values, "environments.train")
    if (
        not value_at(values, "reward.name")
        and not named_by_others
        and ":" not in (value_at(values, "workflow.name") or "")
    ):
        yield Problem(
            "reward.name", "no reward is set; set reward.name=NAME, reward.name=pkg.mod:function or file.py:function"
        )


def missing_workflow(values: Mapping[str, Any], cls: type) -> Iterator[Problem]:
    """Keys of AReaL's examples, which only a workflow reads."""
    if "rollout" not in values:
        return
    added = [key for key in SUBCLASS_KEYS if key in values]
    if added and not value_at(values, "workflow.name"):
        reader = f"nothing else reads {', '.join(added)} of {cls.__name__}"
        yield Problem("workflow.name", f"names no workflow, and {reader}; set workflow.name=pkg.mod:MyWorkflow")


def _dataset_paths(values: Mapping[str, Any]) -> list[str]:
    keys = ("train_dataset.path", "valid_dataset.path")
    return [key for key in keys if isinstance(value_at(values, key), str | list)]


def _annotation(value: Any) -> str:
    if isinstance(value, Mapping):
        return "MySection"
    return type(value).__name__ if isinstance(value, bool | int | float | str) else "Any"


CHECKS = (
    Check("sections of other trainers", Stage.CANNOT_START, foreign_sections),
    Check("vision models and images", Stage.CANNOT_START, vision_models),
    Check("data that no machine can read", Stage.CANNOT_START, unreadable_data),
    Check("a reward", Stage.CANNOT_START, missing_reward),
    Check("a workflow for keys of examples", Stage.CANNOT_START, missing_workflow),
)
