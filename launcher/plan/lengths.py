"""Maximum lengths of sequences: by the sampling settings, the server, and the model."""

import dataclasses
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, starts_servers
from areal_like.config.checks.training import has_trainer
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engine_keys
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.models.model_shape import shape_of
from launcher.plan.host import HostInfo
from launcher.plan.model_config import find_model_config, known_shape
from launcher.plan.plan import Resolved

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


CACHE_BLOCK = 128
"""Tokens in a block of a cache, at most; one is never used."""


def server_limit(config: GRPOConfig, backend: str) -> tuple[str, int | None]:
    """The key that limits prompt plus answer on a server, and its value (None: the model's limit)."""
    key = engine_keys(backend).length_key
    return key, value_of(config, key)


def longest_sample(config: GRPOConfig) -> int:
    """Tokens of prompt plus answer, as limited by sampling and data."""
    prompt = config.train_dataset.max_length
    if prompt is None:
        return config.gconfig.max_tokens
    return min(config.gconfig.max_tokens, prompt + config.gconfig.max_new_tokens)


def least_cache_tokens(config: GRPOConfig, backend: str, positions: int | None) -> int:
    """The longest sequence that a server accepts: an external engine does not start with a smaller cache."""
    limits = (server_limit(config, backend)[1], positions)
    return min((limit for limit in limits if limit), default=longest_sample(config)) + CACHE_BLOCK


def resolved_context_length(config: GRPOConfig, backend: str, host: HostInfo) -> list[Resolved]:
    """Lowers the schema's default to the model's maximum: engines do not start with more."""
    key, limit = server_limit(config, backend)
    section, name = key.split(".")
    default = next(field.default for field in dataclasses.fields(getattr(config, section)) if field.name == name)
    shape = known_shape(config.actor.path, host)
    positions = shape.max_positions if shape else None
    if limit is None or limit != default or positions is None or positions >= limit:
        return []
    return [Resolved(key, positions, f"the maximum of {config.actor.path}; the default is {limit}")]


def answer_length_problems(
    config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo
) -> list[Problem]:
    """`gconfig.max_new_tokens` that leaves no room for a prompt in the server's or the model's context."""
    if not generates(config) or not has_trainer(allocation):
        return []
    key, context = "", None
    if starts_servers(config) and allocation is not None and allocation.rollout is not None:
        backend = allocation.rollout.backend
        key, context = server_limit(config, backend)
        if resolved_context_length(config, backend, host):
            context = None
    content = find_model_config(config.actor.path, host)[0]
    shape = shape_of(content)
    positions = shape.max_positions if shape and not (content or {}).get("rope_scaling") else None
    answer = config.gconfig.max_new_tokens
    if context is not None and answer >= context:
        place, hint = f"the server's {context} ({key})", f"use fewer, or raise {key}"
    elif context is None and positions is not None and answer >= positions:
        place, hint = f"the {positions} positions of {config.actor.path}", "take fewer"
    else:
        return []
    return [Problem("gconfig.max_new_tokens", f"{answer} tokens leave no room for a prompt in {place}; {hint}")]
