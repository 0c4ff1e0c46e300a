"""Keys that are there and checked, but that the trainer does not honour yet: refused before any work, all at once, so
that none is silently without effect."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from areal_like.config.actor import PPOActorConfig
from areal_like.config.allocation.base import Parallel
from areal_like.config.allocation.experiment import trained_models
from areal_like.config.allocation.parse import parse_trainer
from areal_like.config.experiment import GRPOConfig, RWConfig, SFTConfig
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.train_engine import TrainEngineConfig

NOT_YET = "is not built yet"


def refuse(config: Any) -> None:
    problems = list(_problems(config))
    if problems:
        raise ConfigError([Problem(key, message) for key, message in problems])


def _problems(config: Any) -> Iterator[tuple[str, str]]:
    if isinstance(config, RWConfig):
        yield "model", f"training a reward model {NOT_YET}; take an sft, grpo or ppo-less experiment"
        return
    if hasattr(config, "critic"):
        yield "critic", f"training with a critic {NOT_YET}; take a file without a `critic` section, such as grpo.yaml"
        return
    for where, engine in trained_models(config):
        yield from _engine(engine, where)
    if isinstance(config, GRPOConfig):
        yield from _actor(config.actor, config.gconfig.n_samples)
    if isinstance(config, SFTConfig):
        yield from _supervised(config)
    if config.weights.save_format != "safetensors":
        yield "weights.save_format", f"{config.weights.save_format} {NOT_YET}; take safetensors"
    if config.weights.save_sharded:
        yield "weights.save_sharded", f"writing weights in parts {NOT_YET}; set it to false"
    for name in ("memory_path", "trace_path"):
        if getattr(config.profiler, name) is not None:
            yield f"profiler.{name}", f"profiling {NOT_YET}; set it to null"
    for name in ("bench", "enable_token_export"):
        if getattr(config, name):
            yield name, f"{NOT_YET}; set it to false"
    if config.recover.skip_progress:
        yield "recover.skip_progress", f"{NOT_YET}; set it to false"


def _engine(engine: TrainEngineConfig, where: str) -> Iterator[tuple[str, str]]:
    optimizer, fsdp = engine.optimizer, engine.fsdp
    asked: list[tuple[str, bool, str]] = [
        ("use_lora", engine.use_lora, f"LoRA {NOT_YET}; set it to false"),
        ("is_critic", engine.is_critic, f"a head with one number per token {NOT_YET}; set it to false"),
        ("dtype", engine.dtype == "float16", f"float16 wants loss scaling, which {NOT_YET}; take bfloat16"),
        (
            "grad_reduce_dtype",
            engine.grad_reduce_dtype == "float16",
            "float16 wants loss scaling; take float32",
        ),
        ("attn_impl", engine.attn_impl == "eager", "eager computes no packed sequences here; take sdpa or auto"),
        ("pad_to_maximum", engine.pad_to_maximum, f"padding of micro-batches {NOT_YET}; set it to false"),
        ("compile", engine.compile is not None, f"torch.compile of layers {NOT_YET}; set it to null"),
        ("activation_offloading", engine.activation_offloading is not None, f"{NOT_YET}; set it to null"),
        (
            "debug.num_layers",
            engine.debug is not None and engine.debug.num_layers is not None,
            f"{NOT_YET}; set it to null",
        ),
        ("model_impl", engine.model_impl != "hf", f"{engine.model_impl} {NOT_YET}; take hf"),
        ("moe_use_grouped_mm", not engine.moe_use_grouped_mm, f"false {NOT_YET}; leave it out"),
        ("fsdp.offload_params", fsdp.offload_params, f"offloading {NOT_YET}; set it to false"),
        ("fsdp.dp_replicate", fsdp.dp_replicate > 1, f"hybrid sharding {NOT_YET}; set it to 1"),
        ("fsdp.load_using_meta", fsdp.load_using_meta, f"{NOT_YET}; set it to false"),
        (
            "mb_spec.granularity",
            engine.mb_spec.granularity > 1,
            f"only pairs need it, and these {NOT_YET}; set it to 1",
        ),
        ("weight_update_mode", engine.weight_update_mode not in ("disk", "filesystem"), f"{NOT_YET}; take disk"),
    ]
    if optimizer is not None:
        built = ("adam", "sgd")
        asked += [
            ("optimizer.type", optimizer.type not in built, f"{optimizer.type} {NOT_YET}; take {' or '.join(built)}"),
            ("optimizer.offload", optimizer.offload, f"offloading {NOT_YET}; set it to false"),
        ]
    yield from ((f"{where}.{name}", message) for name, is_asked, message in asked if is_asked)
    if engine.backend not in ("", "auto"):
        parallel = Parallel.of(parse_trainer(engine.backend))
        if parallel.world_size != parallel.data:
            message = f"{engine.backend} splits a model over devices in other ways than data parallel, which {NOT_YET}"
            yield f"{where}.backend", f"{message}; take fsdp:d{parallel.world_size}"


def _actor(actor: PPOActorConfig, n_samples: int) -> Iterator[tuple[str, str]]:
    if actor.loss != "ppo":
        yield "actor.loss", f"a loss of one's own {NOT_YET}; take ppo"
    if actor.log_agent_stats:
        yield "actor.log_agent_stats", f"{NOT_YET}; set it to false"
    for name in ("reward_norm", "adv_norm"):
        norm = getattr(actor, name)
        if norm is not None and norm.group_size != n_samples:
            message = f"{norm.group_size} is not gconfig.n_samples={n_samples}: a group is a prompt with its answers"
            yield f"actor.{name}.group_size", f"{message}, so leave this key out"
    zone = actor.overlong_tokens
    if actor.overlong_reward_penalty and zone is not None and zone > actor.max_new_tokens:
        yield "actor.overlong_tokens", f"{zone} is more than actor.max_new_tokens={actor.max_new_tokens}; take less"
    centres = actor.reward_norm is not None and actor.reward_norm.mean_level is not None
    if centres and any(asdict(actor.advantage).values()):
        yield "actor.advantage", "measures rewards against their group, and so does actor.reward_norm; use one of them"


def _supervised(config: SFTConfig) -> Iterator[tuple[str, str]]:
    for where, dataset in (("train_dataset", config.train_dataset), ("valid_dataset", config.valid_dataset)):
        if dataset is None:
            continue
        if dataset.fake is not None:
            yield f"{where}.fake", f"training on random tokens {NOT_YET}; set it to null"
        if dataset.num_workers:
            yield f"{where}.num_workers", f"reading in extra processes {NOT_YET}; set it to 0"
    if config.recover.skip_dataloader:
        yield "recover.skip_dataloader", f"{NOT_YET}; set it to false"
