"""Resolves `auto` of micro-batches on a GPU: how many tokens fit beside a rank's models, and whether layers are
recomputed. One answer for all models of a rank, which compute one after the other."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import trained_models
from areal_like.config.number_text import size_text
from areal_like.config.sections.train_engine import CAUTIOUS_TOKENS
from launcher.plan.host import HostInfo
from launcher.plan.memory import rank_bytes
from launcher.plan.plan import Resolved
from launcher.plan.rank_memory import (
    ENOUGH_TOKENS,
    fitting_tokens,
    longest_unit,
    rank_models,
    unknown_size,
    usable_bytes,
)

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

MOST_TOKENS = 32768
STEP = 256
LIMIT, RECOMPUTE = "mb_spec.max_tokens_per_mb", "gradient_checkpointing"


def resolved_micro_batches(
    loaded: "Loaded", allocation: Allocation | None, host: HostInfo, server_bytes: int, sent_bytes: int = 0
) -> list[Resolved]:
    """`server_bytes`: what a server on the same GPU takes; `sent_bytes`: what the sending of weights takes."""
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
        tokens, recompute = _choose(config, allocation, host, server_bytes, sent_bytes)
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


def _choose(
    config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo, server_bytes: int, sent_bytes: int
) -> tuple[tuple[int, str], tuple[bool, str]]:
    """Tokens and recomputation, each with its reason."""
    sizes = [gpu.memory_bytes for gpu in host.gpus if gpu.memory_bytes]
    longest = longest_unit(config, allocation, host)
    if unknown := unknown_size(config, host) or ("" if sizes else "the memory of the GPU"):
        reason = f"{unknown} is not known before the start"
        return (max(longest, CAUTIOUS_TOKENS), f"a careful value: {reason}"), (True, reason)
    smallest = min(sizes)
    usable = usable_bytes(smallest, server_bytes) - sent_bytes
    fits = [fitting_tokens(config, allocation, host, usable, recompute) for recompute in (False, True)]
    wanted = max(longest, ENOUGH_TOKENS)
    fit = next((fit for fit in fits if fit.tokens >= wanted), fits[1])
    if any(engine.activation_checkpointing is not None for _, engine in trained_models(config)):
        fit = fits[1]
    limit, why = _limit(fit.tokens, longest)
    models = rank_models(config, allocation, host, fit.recompute, limit)
    room = f"{fit.tokens:,} tokens of {size_text(fit.per_token)} fit into {size_text(smallest)} beside "
    room += f"{size_text(rank_bytes(models))} of models"
    room += f" and the server's {size_text(server_bytes)}" if server_bytes else ""
    room += f", and {size_text(sent_bytes)} for weights that are sent" if sent_bytes else ""
    recompute = "selected by activation_checkpointing" if fit is fits[1] and fits[0].tokens >= wanted else ""
    recompute = recompute or f"without it {fits[0].tokens:,} tokens would fit, and {wanted:,} are wanted"
    recompute = recompute if fit.recompute else f"{fit.tokens:,} tokens of a micro-batch fit without it"
    return (limit, f"{why}{room}"), (fit.recompute, recompute)


def _limit(tokens: int, longest: int) -> tuple[int, str]:
    """The limit, and what its reason begins with."""
    if tokens < longest:
        return longest, "the longest sample, which may be too much: "
    if tokens >= max(longest, MOST_TOKENS):
        return max(longest, MOST_TOKENS), "more are not faster; "
    return max(longest, tokens // STEP * STEP, STEP), ""
