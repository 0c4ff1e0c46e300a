"""Finds a model's config.json before it is loaded: built-in, a folder, the Hugging Face cache, published sizes."""

import json
from pathlib import Path
from typing import Any

from areal_like.models import BUILT_IN, built_in_models, config_file, published_config, snapshots
from areal_like.models.model_shape import ModelShape, shape_of
from launcher.plan.host import HostInfo


def known_shape(path: str, host: HostInfo, num_layers: int | None = None) -> ModelShape | None:
    """The dimensions of a model; None if they are not known before it is loaded."""
    return shape_of(find_model_config(path, host)[0], num_layers)


def find_model_config(path: str, host: HostInfo) -> tuple[dict[str, Any] | None, str]:
    """The content of a model's config.json and its path, or None and the reason."""
    if not path:
        return None, "no model is set"
    if path in host.configs:
        return read_config(host.configs[path]), str(host.configs[path])
    if path.startswith(BUILT_IN):
        name = path.removeprefix(BUILT_IN)
        if name not in built_in_models():
            return None, f"{path} is not a built-in model"
        file = config_file(name)
        return read_config(file), str(file)
    folder = host.directory / Path(path).expanduser()
    if folder.is_dir():
        file = folder / "config.json"
        if not file.is_file():
            return None, f"{path} has no config.json"
        return read_config(file), str(file)
    for snapshot in snapshots(path, host.hub):
        if (snapshot / "config.json").is_file():
            return read_config(snapshot / "config.json"), str(snapshot / "config.json")
    published = published_config(path)
    if published is not None:
        return read_config(published), str(published)
    return None, f"{path} is neither a folder nor in the Hugging Face cache ({host.hub})"


def read_config(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text())
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
