"""Finds the folder of a model: built-in, local, or in the Hugging Face cache."""

import os
from difflib import get_close_matches
from pathlib import Path

BUILT_IN = "builtin:"
REPOSITORY = "models--"
"""Prefix of a model's folder in the Hugging Face cache."""
PREPARED_BY = {"smollm2-135m": "python -m areal_like.models.smollm2"}
"""Built-in models without weights -> the command that prepares them."""


def model_folder(path: str, cwd: Path | None = None) -> Path:
    """The folder of `path`: `builtin:` and a name, a folder (relative to `cwd`), or a Hub name in the local cache.
    Downloads nothing."""
    if path.startswith(BUILT_IN):
        return _built_in(path)
    if not path:
        raise ValueError("no model is set: give a folder, a name on the Hub, or builtin: and a name")
    folder = (cwd or Path.cwd()) / Path(path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    snapshot = _snapshot(path)
    if snapshot is not None:
        return snapshot
    raise ValueError(
        f"{path}: neither a folder (relative to {cwd or Path.cwd()}) nor in the Hugging Face cache ({hub_cache()}); "
        f"download it with `hf download {path}`, or set a folder"
    )


def built_in_models() -> list[str]:
    """The names after `builtin:`."""
    return sorted(file.parent.name.replace("_", "-") for file in Path(__file__).parent.glob("*/config.json"))


def unknown_model(path: str) -> str | None:
    """Why `builtin:` and a name is not a built-in model; None if it is one, or another path."""
    name, known = path.removeprefix(BUILT_IN), built_in_models()
    if not path.startswith(BUILT_IN) or name in known:
        return None
    guess = get_close_matches(name.lower().replace("_", "-"), known, 1)
    hint = f"; did you mean {BUILT_IN}{guess[0]}?" if guess else "."
    return f"is not a built-in model{hint} There are: {', '.join(BUILT_IN + each for each in known)}"


def config_file(name: str) -> Path:
    """The `config.json` of a built-in model, which exists before its weights are prepared."""
    return Path(__file__).parent.resolve() / name.replace("-", "_") / "config.json"


def published_config(path: str) -> Path | None:
    """The dimensions of a model on the Hub, as published, for those that `conf/actor` names: plans are made before a
    model is downloaded."""
    file = Path(__file__).parent.resolve() / "hub_configs" / f"{path.replace('/', '--')}.json"
    return file if file.is_file() else None


def prepared_folder(name: str) -> Path:
    """The folder of a prepared model. Increase the number when the conversion changes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "areal-like" / "models" / f"{name}-1"


def missing_weights_hint(path: str) -> str | None:
    """How to prepare the weights of a built-in model; None if they exist."""
    name = path.removeprefix(BUILT_IN)
    if name not in PREPARED_BY or prepared_folder(name).is_dir():
        return None
    return f"the weights of {path} are not on this machine yet; `{PREPARED_BY[name]}` downloads them, once"


def _built_in(path: str) -> Path:
    name = path.removeprefix(BUILT_IN)
    if why := unknown_model(path):
        raise ValueError(f"{path} {why}")
    if hint := missing_weights_hint(path):
        raise ValueError(hint)
    return prepared_folder(name) if name in PREPARED_BY else config_file(name).parent


def hub_cache() -> Path:
    """The Hugging Face cache, by the rules of huggingface_hub."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def snapshots(name: str, hub: Path) -> list[Path]:
    """Those of a model in a cache, that of `main` first."""
    repository = hub / (REPOSITORY + name.replace("/", "--"))
    folder = repository / "snapshots"
    if name.count("/") > 1 or not folder.is_dir():
        return []
    main = repository / "refs" / "main"
    chosen = main.read_text().strip() if main.is_file() else ""
    return sorted(folder.iterdir(), key=lambda snapshot: (snapshot.name != chosen, snapshot.name))


def display_name(path: str) -> str:
    """The model's name for display: of a snapshot in the Hub's cache its name on the Hub."""
    parts = Path(path).parts
    if len(parts) > 3 and parts[-2] == "snapshots" and parts[-3].startswith(REPOSITORY):
        return parts[-3].removeprefix(REPOSITORY).replace("--", "/")
    return path


def _snapshot(name: str) -> Path | None:
    """The first one with a config, since a download may be incomplete."""
    folders = (folder for folder in snapshots(name, hub_cache()) if (folder / "config.json").is_file())
    return next((folder.resolve() for folder in folders), None)
