"""Resolves `auto` of micro-batches on a GPU: how many tokens fit beside a rank's models, and whether layers are
recomputed. One answer for all models of a rank, which compute one after the other."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, starts_servers, trained_models
from areal_like.config.number_text import size_text
from areal_like.serving.engines.engine_site import CONTEXT_BYTES
from launcher.plan.host import HostInfo
from launcher.plan.lengths import longest_sample, server_limit
from launcher.plan.memory import model_memory, rank_bytes, unknown_target_modules
from launcher.plan.model_config import known_shape
from launcher.plan.plan import ModelMemory, Resolved

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

ENOUGH_TOKENS = 16384
"""A GPU computes larger micro-batches about as fast per token: what fits without recomputation is better used so."""
MOST_TOKENS = 32768
CAUTIOUS_TOKENS = 8192
"""Where the size of the model or of the GPU is not known."""
STEP = 256
USABLE = 0.92
"""Share of a GPU that blocks of changing sizes can use."""
LIMIT, RECOMPUTE = "mb_spec.max_tokens_per_mb", "gradient_checkpointing"


class _Fit(NamedTuple):
    """What fits with or without recomputation."""

    recompute: bool
    tokens: int
    models: list[ModelMemory]

    @property
    def per_token(self) -> int:
        return max(model.activations_per_token for model in self.models)


class TrainerBytes(NamedTuple):
    """Of a rank with its activations: the least that it can work with, and with micro-batches that are large enough
    without recomputation."""

    least: int
    wanted: int


def resolved_micro_batches(
    loaded: "Loaded", allocation: Allocation | None, host: HostInfo, server_bytes: int
) -> list[Resolved]:
    """`server_bytes`: what a server on the same GPU takes."""
    config = loaded.config
    models = trained_models(config)
    limits, recomputes = (
        [key for name, _ in models if loaded.get_raw(key := f"{name}.{which}") == "auto"]
        for which in (LIMIT, RECOMPUTE)
    )
    if allocation is None or allocation.actor is None or not (limits or recomputes):
        return []
    tokens: tuple[int | None, str]
    if not allocation.num_gpus:
        tokens, recompute = (None, "on a CPU: no limit, AReaL's default"), (True, "on a CPU: AReaL's default")
    else:
        tokens, recompute = _choose(config, allocation, host, server_bytes)
    return [Resolved(key, *tokens) for key in limits] + [Resolved(key, *recompute) for key in recomputes]


def with_micro_batches(config: "BaseExperimentConfig", resolved: dict[str, Resolved]) -> "BaseExperimentConfig":
    """The configuration with these values resolved, also in models that follow the actor."""
    decided: dict[str, Any] = {}
    for name, engine in trained_models(config):
        values = {
            which: (resolved.get(f"{name}.{which}") or resolved.get(f"actor.{which}")) for which in (LIMIT, RECOMPUTE)
        }
        limit, recompute = values[LIMIT], values[RECOMPUTE]
        if limit is not None and engine.mb_spec.max_tokens_per_mb == "auto":
            engine = replace(engine, mb_spec=replace(engine.mb_spec, max_tokens_per_mb=limit.value))
        if recompute is not None and engine.gradient_checkpointing == "auto":
            engine = replace(engine, gradient_checkpointing=recompute.value)
        decided[name] = engine
    return replace(config, **decided)


def longest_unit(config: "BaseExperimentConfig", positions: int | None, backend: str | None) -> int | None:
    """Tokens of the longest sequences that stay together in a micro-batch; None where nothing limits them."""
    together = max(engine.mb_spec.granularity for _, engine in trained_models(config))
    if generates(config):
        served = server_limit(config, backend)[1] if backend and starts_servers(config) else None
        longest = min(each for each in (longest_sample(config), served, positions) if each)
    else:
        data = [config.train_dataset, *([config.valid_dataset] if config.valid_dataset else [])]
        train, *valid = (each.fake.seq_len if each.fake else each.max_length for each in data)
        if train is None:
            return None
        longest = max([train, *filter(None, valid)])
        together = max(together, 2 if config.train_dataset.type == "rw" else 1)
    return longest * together


def trainer_bytes(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> TrainerBytes | None:
    """None where the size of a model is not known."""
    if unknown_size(config, host):
        return None
    longest = _longest(config, allocation, host)
    recomputed, kept = (_fit(config, allocation, host, 0, recompute) for recompute in (True, False))
    least, wanted = CAUTIOUS_TOKENS, ENOUGH_TOKENS
    if written := [limit for _, engine in trained_models(config) if (limit := engine.mb_spec.token_limit) is not None]:
        least = wanted = max(written)
    return TrainerBytes(
        rank_bytes(recomputed.models) + recomputed.per_token * max(longest, least),
        rank_bytes(kept.models) + kept.per_token * max(longest, wanted),
    )


def usable_bytes(gpu_bytes: int, server_bytes: int) -> int:
    """What a trainer rank can use of a GPU."""
    contexts = 2 if server_bytes else 1
    return int(gpu_bytes * USABLE) - contexts * CONTEXT_BYTES - server_bytes


def unknown_size(config: "BaseExperimentConfig", host: HostInfo) -> str:
    """What of the models is not known before the start."""
    models = [engine for _, engine in trained_models(config)]
    if any(known_shape(engine.path, host) is None for engine in models):
        return "the size of the model"
    return "the size of the adapters" if any(map(unknown_target_modules, models)) else ""


def _longest(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> int:
    """0 where nothing limits it."""
    shapes = [known_shape(engine.path, host) for _, engine in trained_models(config)]
    positions = min((shape.max_positions for shape in shapes if shape and shape.max_positions), default=None)
    return longest_unit(config, positions, allocation.rollout.backend if allocation.rollout else None) or 0


def _choose(
    config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo, server_bytes: int
) -> tuple[tuple[int, str], tuple[bool, str]]:
    """Tokens and recomputation, each with its reason."""
    sizes = [gpu.memory_bytes for gpu in host.gpus if gpu.memory_bytes]
    longest = _longest(config, allocation, host)
    if unknown := unknown_size(config, host) or ("" if sizes else "the memory of the GPU"):
        reason = f"{unknown} is not known before the start"
        return (max(longest, CAUTIOUS_TOKENS), f"a careful value: {reason}"), (True, reason)
    smallest = min(sizes)
    usable = usable_bytes(smallest, server_bytes)
    fits = [_fit(config, allocation, host, usable, recompute) for recompute in (False, True)]
    wanted = max(longest, ENOUGH_TOKENS)
    fit = next((fit for fit in fits if fit.tokens >= wanted), fits[1])
    if any(engine.activation_checkpointing is not None for _, engine in trained_models(config)):
        fit = fits[1]
    room = f"{fit.tokens:,} tokens of {size_text(fit.per_token)} fit into {size_text(smallest)} beside "
    room += f"{size_text(rank_bytes(fit.models))} of models"
    room += f" and the server's {size_text(server_bytes)}" if server_bytes else ""
    recompute = "selected by activation_checkpointing" if fit is fits[1] and fits[0].tokens >= wanted else ""
    recompute = recompute or f"without it {fits[0].tokens:,} tokens would fit, and {wanted:,} are wanted"
    recompute = recompute if fit.recompute else f"{fit.tokens:,} tokens of a micro-batch fit without it"
    return _limit(fit.tokens, longest, room), (fit.recompute, recompute)


def _limit(tokens: int, longest: int, room: str) -> tuple[int, str]:
    if tokens < longest:
        return longest, f"the longest sample, which may be too much: {room}"
    if tokens >= max(longest, MOST_TOKENS):
        return max(longest, MOST_TOKENS), f"more are not faster; {room}"
    return max(longest, tokens // STEP * STEP, STEP), room


def _fit(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo, usable: int, recompute: bool) -> _Fit:
    models = list(_memories(config, allocation, host, recompute))
    per_token = max(model.activations_per_token for model in models)
    return _Fit(recompute, max(0, usable - rank_bytes(models)) // max(1, per_token), models)


def _memories(
    config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo, recompute: bool
) -> Iterator[ModelMemory]:
    for name, engine in trained_models(config):
        decided = (
            replace(engine, gradient_checkpointing=recompute) if engine.gradient_checkpointing == "auto" else engine
        )
        shape = known_shape(engine.path, host, engine.debug.num_layers if engine.debug else None)
        parallel = getattr(allocation, name, None) or allocation.actor
        assert shape is not None and parallel is not None
        yield model_memory(name, decided, shape, parallel)
