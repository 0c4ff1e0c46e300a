"""The failure of a trainer whose GPU has no memory left: one line with the keys to change."""

import os
from typing import Any

from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engine_keys
from areal_like.config.sections.train_engine import CAUTIOUS_TOKENS
from areal_like.process.errors import Failure
from areal_like.process.identity import START_AFTER


def out_of_memory(error: BaseException, config: Any) -> Failure:
    """`error` is torch's, whose first sentences say what was wanted."""
    section = "actor" if hasattr(config, "actor") else "model"
    engine = getattr(config, section)
    key, limit = f"{section}.mb_spec.max_tokens_per_mb", engine.mb_spec.token_limit
    wanted = ". ".join(str(error).split(". ")[:2]).rstrip(".")
    remedies = [f"set it to {CAUTIOUS_TOKENS}" if limit is None else f"lower it from {limit}"]
    if not engine.gradient_checkpointing:
        remedies.append(f"set {section}.gradient_checkpointing=true")
    if not engine.optimizer.offload:
        remedies.append(f"set {section}.optimizer.offload=true")
    if os.environ.get(START_AFTER) and (memory_key := _servers_memory(config)):
        remedies.append(f"lower {memory_key}, as the server shares the GPU")
    return Failure(f"{key}: the GPU has no memory left ({wanted}); {', or '.join(remedies)}")


def _servers_memory(config: Any) -> str:
    """The key and its value."""
    keys = engine_keys(str(config.rollout.backend).partition(":")[0])
    return f"{keys.memory_key} ({value_of(config, keys.memory_key)})" if keys.memory_key else ""
