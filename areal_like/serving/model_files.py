"""What a model's folder says of it, read without torch or transformers."""

import json
from pathlib import Path
from typing import Any


def vocab_size(folder: Path) -> int:
    return int(_text_config(folder)["vocab_size"])


def max_sequence_length(folder: Path) -> int | None:
    """Positions that the model was made for; None where it does not say, or stretches them."""
    said = _text_config(folder)
    if said.get("rope_scaling") or (said.get("rope_parameters") or {}).get("rope_type", "default") != "default":
        return None
    found = said.get("max_position_embeddings")
    return None if found is None else int(found)


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Those of the generation's configuration, as transformers takes them, else of the model's."""
    for file in ("generation_config.json", "config.json"):
        path = folder / file
        said = _read(path).get("eos_token_id") if path.is_file() else None
        if said is not None:
            return tuple(said) if isinstance(said, list) else (int(said),)
    return ()


def _text_config(folder: Path) -> dict[str, Any]:
    said = _read(folder / "config.json")
    inner: dict[str, Any] = said.get("text_config") or said
    return inner


def _read(path: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return said
