"""Functions of algorithms with the defaults of the keys that they are given; by themselves they have none."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from areal_like.algorithms import advantages, normalization
from areal_like.config.sections.actor import AdvantageConfig, NormConfig, PPOActorConfig


def with_defaults(function: Callable[..., Any], config: type) -> Callable[..., Any]:
    values, names = config(**({"path": ""} if config is PPOActorConfig else {})), inspect.signature(function).parameters
    return partial(function, **{each.name: getattr(values, each.name) for each in fields(config) if each.name in names})


normalize = with_defaults(normalization.normalize, NormConfig)
group_advantages = with_defaults(advantages.group_advantages, AdvantageConfig)
generalized_advantages = with_defaults(advantages.generalized_advantages, PPOActorConfig)
