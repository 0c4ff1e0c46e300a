"""The YAML files within reach: the user's own folder first, then the shipped groups and experiments; each read once."""

from pathlib import Path

from areal_like.config.sources.shipped import data_folder, display_path
from areal_like.config.sources.yaml_file import YamlFile, read_yaml


class Library:
    """Groups are folders with YAML files in them, beside the user's file or among the shipped ones."""

    def __init__(self, file: Path) -> None:
        self.folders = [file.resolve().parent, data_folder("conf")]
        self._files: dict[Path, YamlFile] = {}
        self._options: dict[str, list[str] | None] = {}

    def read(self, path: Path, allow_empty: bool = True) -> YamlFile:
        if path not in self._files:
            self._files[path] = read_yaml(path, display_path(path), allow_empty)
        return self._files[path]

    def path_of(self, name: str) -> Path | None:
        """The file behind a config path such as `actor/tiny`."""
        if not _is_plain(name):
            return None
        for folder in (*self.folders, *([] if "/" in name else [data_folder("experiments")])):
            path = folder / f"{name}.yaml"
            if path.is_file():
                return path
        return None

    def options_of(self, group: str) -> list[str] | None:
        """The options of a group, or None where there is no such group; of "" the groups."""
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
    """A relative path that stays where it starts."""
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
