"""Finds and caches YAML files: the folder of the user's file first, then shipped groups and experiments."""

from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.suggest import nearest

if TYPE_CHECKING:
    from areal_like.config.sources.yaml_file import YamlFile

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
    given = Path(text).expanduser()
    folders = [Path(), *([] if given.is_absolute() else [data_folder("experiments")])]
    for folder in folders:
        for suffix in ("", ".yaml", ".yml"):
            path = folder / f"{given}{suffix}"
            if _is_file(path):
                return path
    if _is_dir(given):
        raise ConfigError([Problem(text, "is a directory; name a YAML file in it")])
    shipped = [path.stem for path in sorted(data_folder("experiments").glob("*.yaml"))]
    beside = [path for path in sorted(given.parent.glob("*.y*ml")) if path.suffix in (".yaml", ".yml")]
    files = {path.stem: f"{path.stem}.yaml" for path in map(Path, shipped)} | {path.stem: str(path) for path in beside}
    guess = nearest(given.stem, list(files), 0.75)
    hint = f" Did you mean {' or '.join(files[name] for name in guess)}?" if guess else ""
    raise ConfigError([Problem(text, f"no such file or shipped experiment; shipped are: {', '.join(shipped)}.{hint}")])


def _is_file(path: Path) -> bool:
    """A file, or something else that can be opened (a pipe); False for invalid names."""
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
    """The short name of a file in messages."""
    for folder in (data_folder("conf"), data_folder("experiments")):
        if path.resolve().is_relative_to(folder.resolve()):
            return f"{folder.name}/{path.resolve().relative_to(folder.resolve())}"
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


class Library:
    """Groups are folders of YAML files, in the folder of the experiment's file or shipped."""

    def __init__(self, folder: Path) -> None:
        self.folders = [folder, data_folder("conf")]
        self._files: dict[Path, YamlFile] = {}
        self._options: dict[str, list[str] | None] = {}

    def read(self, path: Path, allow_empty: bool = True) -> "YamlFile":
        from areal_like.config.sources.yaml_file import read_yaml  # brings yaml, which `--help` does without

        if path not in self._files:
            self._files[path] = read_yaml(path, display_path(path), allow_empty)
        return self._files[path]

    def path_of(self, name: str) -> Path | None:
        """The file of a config path such as `actor/tiny`."""
        if not _is_plain(name):
            return None
        for folder in (*self.folders, *([] if "/" in name else [data_folder("experiments")])):
            path = folder / f"{name}.yaml"
            if path.is_file():
                return path
        return None

    def options_of(self, group: str) -> list[str] | None:
        """The options of a group, or None if there is no such group; for "" the groups."""
        if group not in self._options:
            self._options[group] = self._list(group)
        return self._options[group]

    def _list(self, group: str) -> list[str] | None:
        if group == "":
            shipped = [path.name for path in self.folders[1].iterdir() if path.is_dir()]
            own = [path.name for path in _folders(self.folders[0]) if any(path.glob("*.yaml"))]
            return sorted({*shipped, *own})
        if not _is_plain(group):
            return None
        names = {path.stem for folder in self.folders for path in (folder / group).glob("*.yaml")}
        return sorted(names) or None


def _is_plain(name: str) -> bool:
    """A relative path without wildcards and hidden or parent folders."""
    parts = name.split("/")
    return (
        bool(name)
        and len(name) < 200
        and "\0" not in name
        and all(
            part and not part.startswith(".") and "*" not in part and "?" not in part and "[" not in part
            for part in parts
        )
    )


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))]
    except OSError:
        return []
