"""The context of the servers of a run, as far as a worker knows it."""

import json
from pathlib import Path
from typing import Any

from areal_like.config.allocation.grammar import parse_server
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engine_keys
from areal_like.models import model_folder
from areal_like.models.model_shape import shape_of


def context_length(config: Any, cwd: Path) -> int | None:
    """The least of the limit of the servers that the run starts and of the model's positions; None if neither is
    known."""
    limits = [_positions(config.actor.path, cwd)]
    backend = parse_server(config.rollout.backend).backend
    if backend is not None and not config.rollout.server_addresses:
        limits.append(value_of(config, engine_keys(backend).length_key))
    return min((limit for limit in limits if limit), default=None)


def _positions(path: str, cwd: Path) -> int | None:
    try:
        file = model_folder(path, cwd) / "config.json"
    except ValueError:  # a model of servers elsewhere
        return None
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    shape = shape_of(content)
    return shape.max_positions if shape and not content.get("rope_scaling") else None
