"""Where a model's files are: those that come with the package, a folder, or the local cache of the Hub."""

import os
from pathlib import Path

BUILT_IN = "builtin:"


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
        f"{path}: neither a folder (as seen from {cwd or Path.cwd()}) nor in the Hugging Face cache ({_hub()}); "
        f"download it with `hf download {path}`, or name a folder"
    )


def built_in_models() -> list[str]:
    """The names after `builtin:` that there are."""
    here = Path(__file__).parent
    return sorted(file.parent.name.replace("_", "-") for file in here.glob("*/config.json"))


def _built_in(path: str) -> Path:
    name = path.removeprefix(BUILT_IN)
    if name not in built_in_models():
        there = ", ".join(BUILT_IN + known for known in built_in_models())
        raise ValueError(f"{path}: no such model comes with the package; there are: {there}")
    return Path(__file__).parent.resolve() / name.replace("-", "_")


def _hub() -> Path:
    """The Hugging Face cache, by the rules of huggingface_hub."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def _snapshot(path: str) -> Path | None:
    """The snapshot that `main` points to, else another; only one with a config, since a download may have stopped."""
    repository = _hub() / ("models--" + path.replace("/", "--"))
    snapshots = repository / "snapshots"
    if path.count("/") > 1 or not snapshots.is_dir():
        return None
    main = repository / "refs" / "main"
    chosen = main.read_text().strip() if main.is_file() else ""
    candidates = sorted(snapshots.iterdir(), key=lambda folder: (folder.name != chosen, folder.name))
    return next((folder.resolve() for folder in candidates if (folder / "config.json").is_file()), None)
