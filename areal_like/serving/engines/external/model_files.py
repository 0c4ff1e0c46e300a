"""Reads facts about a model from its folder, without torch or transformers."""

import json
from pathlib import Path
from typing import Any


def vocab_size(folder: Path) -> int:
    return int(_text_config(folder)["vocab_size"])


def max_sequence_length(folder: Path) -> int | None:
    """The model's max_position_embeddings; None if it is not set, or positions are scaled."""
    config = _text_config(folder)
    if config.get("rope_scaling") or (config.get("rope_parameters") or {}).get("rope_type", "default") != "default":
        return None
    length = config.get("max_position_embeddings")
    return None if length is None else int(length)


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """From the generation configuration, as in transformers, else from the model's."""
    for file in ("generation_config.json", "config.json"):
        path = folder / file
        ids = _read(path).get("eos_token_id") if path.is_file() else None
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (int(ids),)
    return ()


def _text_config(folder: Path) -> dict[str, Any]:
    config = _read(folder / "config.json")
    text_config: dict[str, Any] = config.get("text_config") or config
    return text_config


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
