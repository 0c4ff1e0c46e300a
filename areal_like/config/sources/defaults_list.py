"""Checks `defaults:` lists before Hydra reads them, and removes groups that the command line selects (these are merged
above the file's body)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from areal_like.config.problems import Problem
from areal_like.config.sources.yaml_file import YamlNode
from areal_like.config.suggest import nearest


@dataclass
class DefaultsList:
    """The entries of one file, ready for Hydra."""

    entries: list[Any] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    """Absolute keys (`actor`, `actor@critic`) of the groups that it selects."""
    overridden: set[str] = field(default_factory=set)
    """Absolute keys of groups that another list selects and this one overrides (`override /actor: x`)."""
    configs: list[str] = field(default_factory=list)
    """Absolute names of the files that it includes, with the options of groups."""
    hydra: list[Any] = field(default_factory=list)
    has_self: bool = False
    problems: list[Problem] = field(default_factory=list)


def read_defaults(
    node: YamlNode | None,
    folder: str,
    place: Callable[[int], str],
    exists: Callable[[str], bool],
    options_of: Callable[[str], list[str] | None],
    chosen: Collection[str],
) -> DefaultsList:
    """`folder` is the group folder of the file ("" at the top); `chosen` are groups that the command line selects."""
    read = DefaultsList()
    if node is None or node.value is None:
        return read
    if not isinstance(node.value, list):
        message = "must be a list of groups and files: `- actor: tiny` lines"
        read.problems.append(Problem("defaults", message, place(node.line)))
        return read
    for item in node.value:
        if isinstance(item.value, str):
            _read_file(item, folder, place, exists, read)
        elif isinstance(item.value, dict) and len(item.value) == 1:
            _read_group(item, folder, place, options_of, chosen, read)
        else:
            message = f"{item.plain()!r} is neither a file nor one `group: option` pair"
            read.problems.append(Problem("defaults", message, place(item.line)))
    return read


def _read_file(
    item: YamlNode, folder: str, place: Callable[[int], str], exists: Callable[[str], bool], read: DefaultsList
) -> None:
    if item.value == "_self_":
        if read.has_self:
            read.problems.append(Problem("defaults", "`_self_` is listed twice; keep one", place(item.line)))
            return
        read.has_self = True
        read.entries.append("_self_")
        return
    optional, _, rest = item.value.rpartition("optional ")
    name = rest.strip().partition("@")[0].removesuffix(".yaml")
    absolute = name[1:] if name.startswith("/") else f"{folder}/{name}".strip("/")
    if not name or ".." in name.split("/") or not exists(absolute):
        if not optional:
            message = f"no file {name!r} beside this file or in the shipped groups"
            read.problems.append(Problem("defaults", message, place(item.line)))
        return
    if absolute in read.configs:
        read.problems.append(Problem("defaults", f"{name!r} is listed twice; keep one", place(item.line)))
        return
    read.configs.append(absolute)
    read.entries.append(item.value.removesuffix(".yaml"))


def _read_group(
    item: YamlNode,
    folder: str,
    place: Callable[[int], str],
    options_of: Callable[[str], list[str] | None],
    chosen: Collection[str],
    read: DefaultsList,
) -> None:
    ((written, option),) = item.value.items()
    words = written.split()
    flags, name = set(words[:-1]), words[-1] if words else ""
    if not flags <= {"optional", "override"}:
        read.problems.append(
            Problem("defaults", f"{written!r} is not a group; write `- group: option`", place(item.line))
        )
        return
    group, _, package = name.partition("@")
    absolute = group[1:] if group.startswith("/") else f"{folder}/{group}".strip("/")
    if absolute.startswith("hydra/"):
        read.hydra.append({written: option.plain()})
        return
    key = absolute + (f"@{package}" if package else "")
    if key in chosen:
        return
    options = options_of(absolute)
    value = option.plain()
    if options is None:
        if "optional" not in flags:
            guess = nearest(absolute, options_of("") or [], 0.7)
            hint = f"; did you mean {guess[0]}?" if guess else ""
            message = f"no group {absolute!r}{hint or '.'} There are: {', '.join(options_of('') or [])}"
            read.problems.append(Problem("defaults", message, place(item.line)))
        return
    choices = [] if value is None else value if isinstance(value, list) else [value]
    for choice in choices:
        if str(choice) not in options and "optional" not in flags:
            guess = nearest(str(choice), options)
            hint = f"; did you mean {guess[0]}?" if guess else ""
            message = f"the group has no option {str(choice)!r}{hint or '.'} There are: {', '.join(options)}"
            read.problems.append(Problem(key, message, place(option.line)))
            return
    if key in read.groups | read.overridden:
        read.problems.append(
            Problem(key, "the group is listed twice in one `defaults:` list; keep one", place(item.line))
        )
        return
    (read.overridden if "override" in flags else read.groups).add(key)
    read.configs += [f"{absolute}/{choice}" for choice in choices if str(choice) in options]
    entry = f"optional {name}" if "optional" in flags else name
    read.entries.append(
        {entry: [str(choice) for choice in value] if isinstance(value, list) else None if value is None else str(value)}
    )
