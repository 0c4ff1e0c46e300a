"""Where the shipped groups and experiments are, and which file `--config NAME` means."""

from pathlib import Path

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.suggest import nearest

PACKAGE = Path(__file__).resolve().parents[2]


def data_folder(name: str) -> Path:
    """`conf` or `experiments`: beside the package in a checkout, inside it in a wheel."""
    checkout = PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    return PACKAGE / "_data" / name


def find_config(name: str | Path) -> Path:
    """A path, then a name in the working directory, then a shipped experiment; with or without `.yaml`."""
    text = str(name)
    if not text.strip():
        raise ConfigError([Problem("--config", "names no file; give a YAML file or a shipped experiment")])
    wanted = Path(text).expanduser()
    folders = [Path(), *([] if wanted.is_absolute() else [data_folder("experiments")])]
    for folder in folders:
        for suffix in ("", ".yaml", ".yml"):
            path = folder / f"{wanted}{suffix}"
            if _is_file(path):
                return path
    if _is_dir(wanted):
        raise ConfigError([Problem(text, "is a directory; name a YAML file in it")])
    shipped = [path.stem for path in sorted(data_folder("experiments").glob("*.yaml"))]
    guess = nearest(wanted.stem, shipped, 0.75)
    hint = f" Did you mean {' or '.join(f'{name}.yaml' for name in guess)}?" if guess else ""
    raise ConfigError(
        [Problem(text, f"no such file, and no shipped experiment; those are: {', '.join(shipped)}.{hint}")]
    )


def _is_file(path: Path) -> bool:
    """A file, or something else that can be opened (a pipe); a name too long or with a NUL is none."""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        return False


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def display_path(path: Path) -> str:
    """How messages name a file: short where that is still clear."""
    for folder in (data_folder("conf"), data_folder("experiments")):
        if path.resolve().is_relative_to(folder.resolve()):
            return f"{folder.name}/{path.resolve().relative_to(folder.resolve())}"
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
