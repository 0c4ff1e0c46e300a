"""Estimates memory before a model is loaded: per trainer rank, and per token of a server's KV cache."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation import Allocation, ParallelStrategy
from areal_like.config.allocation.models import generates, reference_is_base, trained_models
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engine_keys
from areal_like.config.experiment import GRPOConfig
from areal_like.config.gradient_reduction import PER_STEP, choose_reduction
from areal_like.config.number_text import count_text, size_text
from areal_like.models.model_shape import BYTES, DTYPE_ALIASES, ModelShape, shape_of
from areal_like.serving.engines.registry import engine_spec
from launcher.plan.engine_values import engine_site
from launcher.plan.host import HostInfo
from launcher.plan.lengths import server_limit
from launcher.plan.model_config import find_model_config
from launcher.plan.page_locked import activation_bytes, rounding
from launcher.plan.plan import Memory, ModelMemory, ServerMemory
from launcher.plan.step_memory import activation_bytes_per_token, working_bytes

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.sections.train_engine import TrainEngineConfig

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALL_LINEAR = "all-linear"


def plan_memory(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> Memory:
    """Memory of each rank and each server, computed from config.json."""
    unknown: list[str] = []
    trainer = []
    for name, engine in trained_models(config):
        shape = _shape(f"{name}.path", engine, host, unknown)
        if shape and allocation and allocation.actor:
            parallel = getattr(allocation, name, None) or allocation.actor
            if unknown_modules := unknown_target_modules(engine):
                unknown.append(f"{name}.target_modules: the size of adapters for {', '.join(unknown_modules)}")
                continue
            trainer.append(model_memory(name, engine, shape, parallel, bool(allocation.num_gpus)))
    rank = rank_bytes(trainer) if trainer and not unknown else None
    server = server_memory(config, allocation, host) if generates(config) else None
    words = _words(trainer, rank, server, allocation, host)
    if isinstance(config, GRPOConfig) and config.actor.kl_ctl > 0 and reference_is_base(config):
        words.insert(0, "ref: the actor with its adapter disabled, no second model")
    return Memory(tuple(trainer), rank, server, tuple(unknown), tuple(words))


def rank_bytes(models: Sequence[ModelMemory]) -> int:
    """Of one trainer rank, before activations. Its models compute one after the other."""
    return sum(model.total - model.working for model in models) + max(model.working for model in models)


def model_memory(
    name: str, engine: "TrainEngineConfig", shape: ModelShape, parallel: ParallelStrategy, on_gpu: bool = True
) -> ModelMemory:
    """One model on one rank. FSDP shards over data and context ranks; a frozen model has no master copy; with LoRA only
    adapters have gradients and optimizer state. Offloaded parts are in host memory."""
    whole = shape.parameters(engine.is_critic)
    shards = num_shards(engine, parallel)
    split = shards * parallel.tensor
    dtype, master = BYTES[engine.dtype], BYTES[engine.master_dtype]
    frozen = engine.optimizer is None
    trainable = 0 if frozen else lora_parameters(engine, shape) if engine.use_lora else whole
    base = 0 if trainable == whole else whole
    weights, gradients = (base * dtype + trainable * master) // split, trainable * master // split
    if shards > 1 and choose_reduction(engine, shards, on_gpu)[0] == PER_STEP:
        gradients = trainable * BYTES[engine.grad_reduce_dtype] // parallel.tensor
    optimizer = int(_optimizer_bytes(engine.optimizer, trainable, shape, master) // split)

    def rounded(width: int, over: int = split) -> int:
        return rounding(shape, width, over, engine.is_critic) if on_gpu else 0

    # Adapters are small.
    moments = 0 if base else int(optimizer / (whole * master / split) * rounded(master))
    offloaded, more = 0, 0
    if on_gpu and engine.fsdp.offload_params:
        offloaded = weights + gradients + optimizer
        more = rounded(dtype) if base else 2 * rounded(master)
    elif on_gpu and engine.optimizer is not None and engine.optimizer.offload:
        offloaded, more = optimizer, moments
    copied = whole * dtype + (trainable * master // split if base or master != dtype else 0) + optimizer
    copied += rounded(dtype, 1) + (rounded(master) if not base and master != dtype else 0) + moments
    return ModelMemory(
        model=name,
        path=engine.path,
        parameters=whole,
        trainable=trainable,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        working=working_bytes(engine, shape, shards, parallel.tensor, on_gpu),
        host=offloaded,
        activations_per_token=activation_bytes_per_token(engine, shape),
        checkpoint=0 if frozen else copied,
        rounding=more,
        host_activations=activation_bytes(engine, shape, dtype) if on_gpu else 0,
    )


def num_shards(engine: "TrainEngineConfig", parallel: ParallelStrategy | None) -> int:
    """The ranks that share one copy of the model."""
    return 1 if parallel is None else max(1, parallel.data * parallel.context // engine.fsdp.dp_replicate)


def lora_parameters(engine: "TrainEngineConfig", shape: ModelShape) -> int:
    """Two low-rank matrices per adapted one; all linear layers of the blocks where no names are given."""
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inner = shape.mlp // (3 * shape.hidden)
    sides = {
        "q_proj": shape.hidden + query,
        "k_proj": shape.hidden + kv,
        "v_proj": shape.hidden + kv,
        "o_proj": query + shape.hidden,
        "gate_proj": shape.hidden + inner,
        "up_proj": shape.hidden + inner,
        "down_proj": inner + shape.hidden,
    }
    names = [name.rsplit(".", 1)[-1] for name in engine.target_modules]
    names = list(sides) if not names or ALL_LINEAR in names else [name for name in names if name in sides]
    return engine.lora_rank * shape.layers * sum(sides[name] for name in names)


def unknown_target_modules(engine: "TrainEngineConfig") -> list[str]:
    """Target modules that are not a known linear layer."""
    if not engine.use_lora or engine.optimizer is None:
        return []
    return [name for name in engine.target_modules if name.rsplit(".", 1)[-1] not in (*LINEAR_LAYERS, ALL_LINEAR)]


def _optimizer_bytes(optimizer: Any, trainable: int, shape: ModelShape, master: int) -> float:
    if optimizer is None:
        return 0
    if optimizer.type == "sgd":
        return trainable * master if optimizer.momentum else 0
    if optimizer.type == "adam_bf16":
        return 2 * trainable * BYTES["bfloat16"]
    if optimizer.type == "muon":  # one buffer for matrices; AdamW's two for embeddings, head and vectors
        vectors = min(trainable, (1 if shape.tied else 2) * shape.embedding)
        return (trainable + vectors) * master
    return 2 * trainable * master


def server_memory(config: GRPOConfig, allocation: Allocation | None, host: HostInfo) -> ServerMemory | None:
    shape = _shape("actor.path", config.actor, host, [])
    if shape is None or allocation is None or allocation.rollout is None or config.rollout.server_addresses:
        return None
    rollout = allocation.rollout
    keys = engine_keys(rollout.backend)
    dtype = value_of(config, keys.dtype_key)
    width = BYTES.get(config.actor.dtype if dtype == "auto" else DTYPE_ALIASES.get(dtype, dtype), 2)
    kv_dtype = value_of(config, keys.kv_dtype_key) if keys.kv_dtype_key else ""
    kv_width = 1 if kv_dtype.startswith("fp8") else width
    share = rollout.tensor * rollout.pipeline
    kv = shape.kv_per_token * kv_width // (min(rollout.tensor, shape.kv_heads) * rollout.pipeline)
    limits = (config.gconfig.max_tokens, server_limit(config, rollout.backend)[1], shape.max_positions)
    longest = min(limit for limit in limits if limit)
    weights, sets = shape.parameters() * width // share, _weight_sets(config, allocation, host, longest)
    return ServerMemory("actor", config.actor.path, weights, kv, kv * longest, sets)


def _weight_sets(config: GRPOConfig, allocation: Allocation, host: HostInfo, longest: int) -> int:
    """How many a server holds: the embedded engine loads the next version beside the one in use."""
    assert allocation.rollout is not None
    spec, site = engine_spec(allocation.rollout.backend), engine_site(config, allocation, host)
    return spec.weight_copies if spec.count_bytes is None else spec.count_bytes(config, site, longest).sets


def _shape(key: str, engine: "TrainEngineConfig", host: HostInfo, unknown: list[str]) -> ModelShape | None:
    content, where = find_model_config(engine.path, host)
    shape = shape_of(content, engine.debug.num_layers if engine.debug else None)
    if shape is None:
        why = f"{where} does not describe a model of a known type"
        why = f"{where}; --dry-run with --model-config FILE takes its config.json" if content is None else why
        unknown.append(f"{key}: {why}")
    return shape


def _words(
    trainer: list[ModelMemory],
    rank: int | None,
    server: ServerMemory | None,
    allocation: Allocation | None,
    host: HostInfo,
) -> list[str]:
    words = []
    on_gpu = bool(allocation and allocation.num_gpus)
    for model in trainer:
        size = f"{model.model}: {count_text(model.parameters)} parameters"
        if 0 < model.trainable < model.parameters:
            size += f", {count_text(model.trainable)} of them in adapters and trained"
        parts = [("weights", model.weights), ("gradients", model.gradients), ("optimizer", model.optimizer)]
        away = 0 if not model.host else 1 if model.host == model.optimizer else 3
        offloaded = parts[len(parts) - away :]
        kept = [*parts[: len(parts) - away], ("in use while computing", model.working)]
        text = f"{size}; on each trainer rank {_listed(kept)} = {size_text(model.total)}"
        text = f"{text}, and in host memory {_listed(offloaded)} = {size_text(model.host)}" if away else text
        if model.rounding:
            text += f" and {size_text(model.rounding)} more, as page-locked memory is allocated in powers of two"
        text += f"; each token of a micro-batch takes {size_text(model.activations_per_token)} more"
        if model.host_activations:
            text += f"; activations of a micro-batch take {size_text(model.host_activations)} of host memory"
        if model.checkpoint:
            when = "from its first checkpoint on" if on_gpu else "while a checkpoint is written"
            text += f", and {when} rank 0 has {size_text(model.checkpoint)} in host memory"
        words.append(text)
    if rank is not None:
        place = "GPU" if on_gpu else "process"
        away = sum(model.host + model.rounding for model in trainer)
        beside = f", and {size_text(away)} in host memory" if away else ""
        words.append(f"each trainer {place} holds {size_text(rank)} before activations{beside}")
    if server is not None:
        text = f"server: weights {size_text(server.weights)}"
        if server.weight_sets > 1:
            text += f" and as much for the next version, together {size_text(server.weight_sets * server.weights)}"
        text += f"; cache {size_text(server.kv_bytes_per_token)} per token"
        if server.kv_bytes_longest_sample:
            text += f", {size_text(server.kv_bytes_longest_sample)} for a sequence of the greatest length"
        words.append(text)
    return words


def _listed(parts: list[tuple[str, int]]) -> str:
    return " + ".join(f"{name} {size_text(size)}" for name, size in parts if size)
