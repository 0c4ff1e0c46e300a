"""docs/reference.md, made from the configuration classes and the shipped files."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from areal_like.config.checks.config_checks import ALLOCATION_CHECKS, NO_EFFECT_CHECKS, VALUE_CHECKS
from areal_like.config.describe.help import default_text, meaning, type_text
from areal_like.config.describe.yaml_text import scalar_text
from areal_like.config.engines import engine_names
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.names import ALIASES
from areal_like.config.problems import Stage
from areal_like.config.schema import Key, Schema, Section
from areal_like.config.sources.library import data_folder
from areal_like.config.sources.yaml_file import YamlFile, read_yaml
from areal_like.serving.engines.registry import engine_spec
from launcher.checks.plan_checks import PLAN_CHECKS

_INTRO = """\
# Reference

This page is made from the code by `make docs`; do not edit it. [configuration.md](configuration.md) explains how files,
groups and overrides go together; [keys.md](keys.md) lists which keys have an effect.

`python -m launcher --help=SECTION` shows the same in a terminal: a section such as `gconfig`, or a key such as
`actor.optimizer.lr`. A default written `${...}` follows the key that it names. `null` is YAML's empty value; a section
that is null gets its defaults as soon as one of its keys is set. A key whose type ends in "or auto" can be `auto`: its
value is then chosen for this machine.
"""

_CHECKS_INTRO = """\
All problems are reported at once, each with its key, where it was set, and what to do. An *invalid* configuration is
not loaded. A plan (`--dry-run`) shows what *cannot start* on any machine and what is *missing* on this one; a start is
refused for both. Values with *no effect* and *warnings* are shown, and the run starts. A trainer that was started by
hand refuses what cannot start by its configuration alone."""
LOAD_CHECKS = (*VALUE_CHECKS, *ALLOCATION_CHECKS)


@dataclass(frozen=True)
class Place:
    """A path at which one kind of experiment uses a class."""

    experiment: str
    path: str
    section: Section


def render() -> str:
    """The whole page."""
    lines = [*_INTRO.splitlines(), *_contents(), *_short_names(), *_experiments(), *_groups(), *_checks()]
    lines += ["", "## Keys"]
    for cls in _classes():
        lines += _class_lines(cls)
    return "\n".join(lines) + "\n"


# The classes and where they stand


@cache
def _places() -> tuple[Place, ...]:
    return tuple(
        Place(name, path, section)
        for name, cls in EXPERIMENTS.items()
        for path, section in Schema.of(cls).sections.items()
    )


@cache
def _classes() -> tuple[type, ...]:
    """Every class that declares a key, in the order of the tree, the more general one first."""
    order = ("ppo", "sft", "reward_model", "grpo")
    classes: dict[type, None] = {}
    for place in sorted(_places(), key=lambda place: order.index(place.experiment)):
        classes |= dict.fromkeys(cls for cls in reversed(place.section.cls.__mro__) if _own_names(cls))
    roots = [cls for cls in classes if any(issubclass(root, cls) for root in EXPERIMENTS.values())]
    return (*roots, *(cls for cls in classes if cls not in roots))


@cache
def _own_names(cls: type) -> tuple[str, ...]:
    return tuple(inspect.get_annotations(cls))


def _holder(cls: type, name: str) -> type:
    """The class of a family that declares a name last."""
    return next(base for base in cls.__mro__ if name in _own_names(base))


def _places_of(cls: type) -> list[Place]:
    return [place for place in _places() if issubclass(place.section.cls, cls)]


def _contents() -> Iterator[str]:
    """Section by section, the class that has its keys."""
    rows: dict[str, dict[type, list[str]]] = {}
    for place in _places():
        if place.path and "." not in place.path:
            rows.setdefault(place.path, {}).setdefault(place.section.cls, []).append(place.experiment)
    yield from ("", "| section | in | keys | content |", "|---|---|---|---|")
    roots = ", ".join(_linked(cls) for cls in _classes() if _places_of(cls)[0].path == "")
    yield f"| the top of a file | every experiment | {roots} | keys outside sections |"
    for path, classes in rows.items():
        for cls, experiments in classes.items():
            kinds = ", ".join(experiments) if len(experiments) < len(EXPERIMENTS) else "every experiment"
            first = next(place.section for place in _places() if place.path == path and place.section.cls is cls)
            linked = ", ".join(_linked(base) for base in reversed(cls.__mro__) if _own_names(base))
            yield _row(f"`{path}`", kinds, linked, meaning(first))


def _short_names() -> Iterator[str]:
    yield from ("", "## Short names", "", "| short | stands for |", "|---|---|")
    yield from (_row(f"`{short}`", f"`{real}`") for short, real in ALIASES.items())


# Experiments and groups


def _experiments() -> Iterator[str]:
    yield from ("", "## Experiments", "", "Files that `--config NAME` finds from any folder, to copy and change.")
    for path in sorted(data_folder("experiments").glob("*.yaml")):
        file = _read(path)
        yield from ("", f"### {path.name}", "", _comment(path))
        groups = [f"`{group}={option}`" for group, option in _choices(file)]
        yield from ("", f"Builds on {', '.join(groups)}. Sets {', '.join(_settings(file, ''))}.")


def _groups() -> Iterator[str]:
    yield from ("", "## Groups", "", "`GROUP=OPTION` on the command line, `- GROUP: OPTION` in `defaults:`.")
    for folder in sorted(path for path in data_folder("conf").iterdir() if path.is_dir()):
        yield from ("", f"### Group {folder.name}", "", "| option | what it is | sets |", "|---|---|---|")
        for path in sorted(folder.glob("*.yaml")):
            file = _read(path)
            package = file.header.get("package", folder.name)
            settings = _settings(file, "" if package == "_global_" else package)
            builds_on = [f"what `{name}` sets" for name in _included(file)]
            yield _row(f"`{path.stem}`", _comment(path), ", ".join([*builds_on, *settings]))


def _read(path: Path) -> YamlFile:
    return read_yaml(path, path.name, allow_empty=True)


def _defaults(file: YamlFile) -> list[Any]:
    content = file.root.plain() if file.root is not None else {}
    entries = content.get("defaults") or []
    assert isinstance(entries, list)
    return entries


def _choices(file: YamlFile) -> list[tuple[str, Any]]:
    return [pair for entry in _defaults(file) if isinstance(entry, dict) for pair in entry.items()]


def _included(file: YamlFile) -> list[str]:
    return [entry for entry in _defaults(file) if isinstance(entry, str) and entry != "_self_"]


def _settings(file: YamlFile, package: str) -> list[str]:
    content = file.root.plain() if file.root is not None else {}
    body = {name: value for name, value in content.items() if name != "defaults"}
    return [f"`{path}: {scalar_text(value)}`" for path, value in _leaves(body, package)]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves(below, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def _comment(path: Path) -> str:
    """The first paragraph of the comment on top of a file."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# @"):
            continue
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or not text:
            break
        words.append(text)
    return " ".join(words)


# The checks


def _checks() -> Iterator[str]:
    """The registry: what is checked, by stage."""
    yield from ("", "## Checks", "", *_CHECKS_INTRO.splitlines(), "", "| stage | what is checked |", "|---|---|")
    engines = [check for name in engine_names() for check in engine_spec(name).checks]
    for stage in Stage:
        names = [check.name for check in (*LOAD_CHECKS, *PLAN_CHECKS, *engines) if check.stage is stage]
        if stage is Stage.NO_EFFECT:
            names += [check.name for check in NO_EFFECT_CHECKS]
        yield _row(f"**{stage}**", "; ".join(names))


# The keys of one class


def _class_lines(cls: type) -> Iterator[str]:
    places = _places_of(cls)
    above = [_linked(base) for base in cls.__mro__[1:] if _own_names(base)]
    besides = f", with the keys of {' and '.join(above)}" if above else ""
    yield from ("", f"### {cls.__name__}", "", " ".join((cls.__doc__ or "").split()))
    yield from ("", f"Used at {_where(places)}{besides}.")
    yield from ("", "| key | takes | default | meaning |", "|---|---|---|---|")
    paths = {place.path for place in places}
    prefix = f"{next(iter(paths))}." if len(paths) == 1 and "" not in paths else ""
    schema = Schema.of(cls)
    for name in _own_names(cls):
        section = schema.sections.get(name)
        if section is not None:
            default = "null" if section.default_null else ""
            yield _row(f"`{prefix}{name}`", f"section {_linked(section.cls)}", default, meaning(section))
            continue
        key = schema.keys[name]
        default = "required" if key.constraints.required else f"`{default_text(key)}`"
        yield _row(f"`{prefix}{name}`", _type(key), default, meaning(key))
    others = list(_other_defaults(cls, places))
    if others:
        yield from ("", "Other defaults by place:", "", *others)


def _type(key: Key) -> str:
    item = key.kind.item.cls if key.kind.item is not None else None
    text = f"a list of {_linked(item)}" if item is not None else type_text(key)
    if key.constraints.pattern_hint:
        text = f"{text}: {key.constraints.pattern_hint}"
    return text + (" (secret: never shown)" if key.constraints.secret else "")


def _where(places: Sequence[Place]) -> str:
    """The paths, with the kinds of experiment unless all have them."""
    by_path: dict[str, list[str]] = {}
    for place in places:
        by_path.setdefault(place.path, []).append(place.experiment)
    groups: dict[tuple[str, ...], list[str]] = {}
    for path, experiments in by_path.items():
        groups.setdefault(tuple(experiments), []).append(path)
    return "; ".join(
        ", ".join(_place_name(path) for path in paths) + ("" if len(kinds) == len(EXPERIMENTS) else _of(kinds))
        for kinds, paths in groups.items()
    )


def _place_name(path: str) -> str:
    if path.endswith("[]"):
        return f"each item of `{path.removesuffix('[]')}`"
    return f"`{path}`" if path else "the top of a file"


def _of(experiments: Sequence[str]) -> str:
    return f" ({', '.join(experiments)})"


def _other_defaults(cls: type, places: Sequence[Place]) -> Iterator[str]:
    """Defaults of places that differ from those of the class, with the kinds of experiment."""
    own = _defaults_at(Schema.of(cls), "", cls)
    differing: dict[tuple[str, str], list[str]] = {}
    for place in places:
        names = [name for name in own if _holder(place.section.cls, name) is cls]
        there = _defaults_at(Schema.of(EXPERIMENTS[place.experiment]), place.path, place.section.cls)
        others = ", ".join(f"`{name}: {there[name]}`" for name in names if there[name] != own[name])
        if others:
            differing.setdefault((place.path, others), []).append(place.experiment)
    for (path, defaults), experiments in differing.items():
        everywhere = [place.experiment for place in places if place.path == path]
        yield f"- {_place_name(path)}{'' if experiments == everywhere else _of(experiments)}: {defaults}"


def _defaults_at(schema: Schema, path: str, cls: type) -> dict[str, str]:
    """The defaults of a class's own keys at `path`."""
    defaults = {}
    for name in (name for base in cls.__mro__ for name in _own_names(base)):
        below = f"{path}.{name}" if path else name
        section = schema.sections.get(below)
        if section is not None:
            defaults[name] = "null" if section.default_null else "on"
        else:
            defaults[name] = default_text(schema.keys[below])
    return defaults


def _linked(cls: type) -> str:
    """A class without keys of its own has those of the class that it extends."""
    holder = next(base for base in cls.__mro__ if _own_names(base))
    return f"[{holder.__name__}](#{holder.__name__.lower()})"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
