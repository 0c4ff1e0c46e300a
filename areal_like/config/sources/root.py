"""The primary config of the composition, and the files below it.

Hydra would merge the body of the user's file above groups that are selected on the command line. So the primary config
is generated: schema, groups that the schema selects, the file's `defaults:`, its body, groups of the command line.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sources.defaults_list import DefaultsList, read_defaults
from areal_like.config.sources.library import Library
from areal_like.config.sources.overrides import GroupChoice
from areal_like.config.sources.yaml_file import YamlFile, YamlNode

ROOT = "__root__"
SCHEMA = "__schema__"


class CompositionFiles:
    """The files of one composition by config path, and the files that each includes."""

    def __init__(self, library: Library, file: YamlFile, experiment: str, choices: Mapping[str, GroupChoice]) -> None:
        self.library, self.file, self.experiment, self.choices = library, file, experiment, choices
        self.problems: list[Problem] = []
        self.lists: dict[str, DefaultsList] = {}
        own = self._read_all()
        self._refuse_circles()
        self._refuse_groups_chosen_twice()
        self.root = self._entries(own)

    def _entries(self, own: DefaultsList) -> list[Any]:
        entries: list[Any] = [SCHEMA]
        if self.by_schema():
            entries.append({"experiment": self.experiment})
        entries += own.entries if own.has_self else [*own.entries, "_self_"]
        return entries + [{choice.key: _option(choice)} for choice in self.choices.values()]

    def by_schema(self) -> bool:
        """Whether the schema determines the experiment: neither a file nor the command line selects it."""
        is_chosen = any("experiment" in listed.groups | listed.overridden for listed in self.lists.values())
        return not is_chosen and "experiment" not in self.choices

    def chosen_files(self) -> list[str]:
        """The options that the command line selects."""
        return [f"{c.key.partition('@')[0]}/{option}" for c in self.choices.values() for option in c.options]

    def choice_of(self, name: str) -> GroupChoice | None:
        """The override that selects this file, or a file that includes it."""
        for choice in self.choices.values():
            if name in self.built_on([f"{choice.key.partition('@')[0]}/{option}" for option in choice.options]):
                return choice
        return None

    def _read_all(self) -> DefaultsList:
        """Reads the `defaults:` lists of the file and of all files that it includes."""
        chosen = set(self.choices)
        own = self._read_list("", self.file, chosen)
        chosen |= own.overridden
        waiting = [*own.configs, *self.chosen_files(), f"experiment/{self.experiment}"]
        while waiting:
            name = waiting.pop()
            path = self.library.path_of(name)
            if name in self.lists or path is None:
                continue
            file = self.library.read(path)
            self.problems += file.problems
            waiting += self._read_list(name, file, chosen).configs
        return own

    def _read_list(self, name: str, file: YamlFile, chosen: set[str]) -> DefaultsList:
        listed = read_defaults(
            file.root.value.get("defaults") if file.root is not None else None,
            name.rpartition("/")[0],
            lambda line: f"{file.shown}:{line}",
            lambda included: self.library.path_of(included) is not None,
            self.library.options_of,
            chosen,
        )
        self.problems += listed.problems
        self.lists[name] = listed
        return listed

    def built_on(self, names: Sequence[str]) -> set[str]:
        """These files, and the files that they include, directly or indirectly."""
        reached: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += self.lists[name].configs if name in self.lists else []
        return reached

    def _refuse_circles(self) -> None:
        """Raises ConfigError for a file that includes itself."""
        for name, listed in self.lists.items():
            if name and name in self.built_on(listed.configs):
                message = "includes itself, directly or through another file; remove it from one `defaults:` list"
                raise ConfigError([*self.problems, Problem(self.part(name)[0].shown, message)])

    def _refuse_groups_chosen_twice(self) -> None:
        """Raises ConfigError if two files select the same group without `override`."""
        chosen: dict[str, str] = {}
        for name, listed in self.lists.items():
            place = self.part(name or ROOT)[0].shown
            for group in listed.groups:
                if group in chosen:
                    message = f"the group is chosen in {chosen[group]} and in {place}; write `- override /{group}: ...`"
                    raise ConfigError([*self.problems, Problem(group, f"{message} in the outer one", place)])
                chosen[group] = place

    def part(self, name: str) -> tuple[YamlFile, dict[str, YamlNode]]:
        """The file of a config path, and its body."""
        file = self.file
        if name != ROOT:
            path = self.library.path_of(name)
            assert path is not None
            file = self.library.read(path)
        return file, file.body(primary=name == ROOT)

    def listed(self, name: str) -> tuple[list[Any], dict[str, str]] | None:
        """The `defaults:` of a config path, and its header (`# @package`); None if there is no such file."""
        if name in (ROOT, SCHEMA):
            return self.root if name == ROOT else [], {}
        return (self.lists[name].entries, self.part(name)[0].header) if name in self.lists else None


def _option(choice: GroupChoice) -> Any:
    if not choice.options:
        return None
    return choice.options[0] if len(choice.options) == 1 else list(choice.options)
