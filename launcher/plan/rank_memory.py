"""What a trainer rank takes of a GPU with the activations of its micro-batches, and how much of a GPU it can use."""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, starts_servers, trained_models
from areal_like.config.sections.train_engine import CAUTIOUS_TOKENS
from areal_like.serving.engines.engine_site import CONTEXT_BYTES
from launcher.plan.host import HostInfo
from launcher.plan.lengths import longest_sample, server_limit
from launcher.plan.memory import model_memory, rank_bytes, unknown_target_modules
from launcher.plan.model_config import known_shape
from launcher.plan.plan import ModelMemory

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

ENOUGH_TOKENS = 16384
"""A GPU computes larger micro-batches about as fast per token: what fits without recomputation is better used so."""
USABLE = 0.92
"""Share of a GPU that blocks of changing sizes can use."""


class TrainerBytes(NamedTuple):
    """Of a rank with its activations: the least that it can work with, and with micro-batches that are large enough
    without recomputation."""

    least: int
    wanted: int


class FittingTokens(NamedTuple):
    """Of a micro-batch, with or without recomputation."""

    recompute: bool
    tokens: int
    models: list[ModelMemory]

    @property
    def per_token(self) -> int:
        return max(model.activations_per_token for model in self.models)


def _longest_unit(config: "BaseExperimentConfig", positions: int | None, backend: str | None) -> int | None:
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
    longest = longest_unit(config, allocation, host)
    recomputed, kept = (fitting_tokens(config, allocation, host, 0, recompute) for recompute in (True, False))
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


def longest_unit(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> int:
    """Tokens of the longest sequences that stay together in a micro-batch; 0 where nothing limits them."""
    shapes = [known_shape(engine.path, host) for _, engine in trained_models(config)]
    positions = min((shape.max_positions for shape in shapes if shape and shape.max_positions), default=None)
    return _longest_unit(config, positions, allocation.rollout.backend if allocation.rollout else None) or 0


def fitting_tokens(
    config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo, usable: int, recompute: bool
) -> FittingTokens:
    models = rank_models(config, allocation, host, recompute)
    per_token = max(model.activations_per_token for model in models)
    return FittingTokens(recompute, max(0, usable - rank_bytes(models)) // max(1, per_token), models)


def rank_models(
    config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo, recompute: bool, limit: int | None = None
) -> list[ModelMemory]:
    """`limit`: tokens of a micro-batch, where they are decided: few of them take less memory in the head."""
    models = []
    for name, engine in trained_models(config):
        decided = (
            replace(engine, gradient_checkpointing=recompute) if engine.gradient_checkpointing == "auto" else engine
        )
        if limit is not None and engine.mb_spec.max_tokens_per_mb == "auto":
            decided = replace(decided, mb_spec=replace(engine.mb_spec, max_tokens_per_mb=limit))
        shape = known_shape(engine.path, host, engine.debug.num_layers if engine.debug else None)
        parallel = getattr(allocation, name, None) or allocation.actor
        assert shape is not None and parallel is not None
        models.append(model_memory(name, decided, shape, parallel))
    return models
