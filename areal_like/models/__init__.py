"""Where a model's files are: those that come with the package, a folder, or the local cache of the Hub."""

import os
from pathlib import Path

BUILT_IN = "builtin:"
REPOSITORY = "models--"
"""How the cache of the Hub begins the name of a model's folder."""
PREPARED_BY = {"smollm2-135m": "python -m areal_like.models.smollm2"}
"""Models of which the package has the description alone -> the command that brings their weights."""


def model_folder(path: str, cwd: Path | None = None) -> Path:
    """The folder of `path`: `builtin:` and a name, a folder (as seen from `cwd`), or a name on the Hub that is in the
    local cache. Nothing is downloaded."""
    if path.startswith(BUILT_IN):
        return _built_in(path)
    if not path:
        raise ValueError("no model is named: give a folder, a name on the Hub, or builtin: and a name")
    folder = (cwd or Path.cwd()) / Path(path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    snapshot = _snapshot(path)
    if snapshot is not None:
        return snapshot
    raise ValueError(
        f"{path}: neither a folder (as seen from {cwd or Path.cwd()}) nor in the Hugging Face cache ({hub_cache()}); "
        f"download it with `hf download {path}`, or name a folder"
    )


def built_in_models() -> list[str]:
    """The names after `builtin:` that there are."""
    return sorted(file.parent.name.replace("_", "-") for file in Path(__file__).parent.glob("*/config.json"))


def config_file(name: str) -> Path:
    """The `config.json` of a built-in model, which is there also before its weights are."""
    return Path(__file__).parent.resolve() / name.replace("-", "_") / "config.json"


def prepared_folder(name: str) -> Path:
    """Where a model is that a command has prepared. The number changes when what is made of the same file does."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "areal-like" / "models" / f"{name}-1"


def missing_weights_hint(path: str) -> str | None:
    """What is to be done before the weights of a built-in model are there."""
    name = path.removeprefix(BUILT_IN)
    if name not in PREPARED_BY or prepared_folder(name).is_dir():
        return None
    return f"the weights of {path} are not on this machine yet; `{PREPARED_BY[name]}` brings them, once"


def _built_in(path: str) -> Path:
    name = path.removeprefix(BUILT_IN)
    if name not in built_in_models():
        there = ", ".join(BUILT_IN + known for known in built_in_models())
        raise ValueError(f"{path}: no such model comes with the package; there are: {there}")
    if why := missing_weights_hint(path):
        raise ValueError(why)
    return prepared_folder(name) if name in PREPARED_BY else config_file(name).parent


def hub_cache() -> Path:
    """The Hugging Face cache, by the rules of huggingface_hub."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def snapshots(name: str, hub: Path) -> list[Path]:
    """Those of a model in a cache, that which `main` points to first."""
    repository = hub / (REPOSITORY + name.replace("/", "--"))
    folder = repository / "snapshots"
    if name.count("/") > 1 or not folder.is_dir():
        return []
    main = repository / "refs" / "main"
    chosen = main.read_text().strip() if main.is_file() else ""
    return sorted(folder.iterdir(), key=lambda snapshot: (snapshot.name != chosen, snapshot.name))


def display_name(path: str) -> str:
    """What people call the model of a path: that of a snapshot in the Hub's cache is its name there."""
    parts = Path(path).parts
    if len(parts) > 3 and parts[-2] == "snapshots" and parts[-3].startswith(REPOSITORY):
        return parts[-3].removeprefix(REPOSITORY).replace("--", "/")
    return path


def _snapshot(name: str) -> Path | None:
    """Only one with a config, since a download may have stopped."""
    found = (folder for folder in snapshots(name, hub_cache()) if (folder / "config.json").is_file())
    return next((folder.resolve() for folder in found), None)
