"""Overrides of the command line: parsed by Hydra's grammar, checked against the schema."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from areal_like.config.names import ALIASES
from areal_like.config.problems import Problem
from areal_like.config.redact import SECRET, is_secret_name
from areal_like.config.schema import Schema
from areal_like.config.sources.layers import Layer
from areal_like.config.sources.leaves import LayerReader, Leaf
from areal_like.config.sources.yaml_file import YamlNode
from areal_like.config.suggest import did_you_mean, nearest, suggest

MAP_NAMES = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


@dataclass(frozen=True)
class GroupChoice:
    """`rollout=vllm`: an option (or several, or none) of a group. `key` has the package where one is given."""

    key: str
    options: tuple[str, ...]
    where: str


@dataclass
class Overrides:
    """All overrides: groups first, then values."""

    groups: dict[str, GroupChoice] = field(default_factory=dict)
    values: list[Layer] = field(default_factory=list)
    foreign: list[Leaf] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class OverrideWord:
    """One override, parsed by Hydra's grammar."""

    text: str
    parsed: Any

    secret: bool = False

    @property
    def where(self) -> str:
        return f"override {self.text.partition('=')[0]}={SECRET}" if self.secret else f"override {self.text}"

    @property
    def key(self) -> str:
        return str(self.parsed.key_or_group)

    @property
    def group_key(self) -> str:
        return self.key + (f"@{self.parsed.package}" if self.parsed.package else "")

    @property
    def is_hydra(self) -> bool:
        return self.key.startswith(("hydra.", "hydra/")) or self.key == "hydra"


def parse_overrides(texts: Sequence[str]) -> tuple[list[OverrideWord], list[Problem]]:
    """Parses each override; syntax errors are problems."""
    if not texts:
        return [], []
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    words, problems = [], []
    for text in texts:
        try:
            words.append(OverrideWord(text, parser.parse_override(text)))
        except HydraException as error:
            key, has_value, _ = text.partition("=")
            reason = str(error).splitlines()[0] if str(error) else "is not an override"
            message = f"cannot be read as an override ({reason}); quote special characters: {key}='\"...\"'"
            if not has_value:
                message = "unexpected argument; write key=value, group=option, ~key, a command or a flag (--help)"
            if any(is_secret_name(part) for part in key.split(".")):
                text, message = f"{key}={SECRET}", "cannot be read as an override; check its quotes"
            problems.append(Problem(key.lstrip("+~") or text or "(empty word)", message, f"override {text}"))
        except RecursionError:
            problems.append(Problem(text.partition("=")[0][:60], "is nested too deeply", f"override {text[:60]}..."))
    return words, problems


def read_overrides(
    words: Sequence[OverrideWord], schema: Schema, options_of: Callable[[str], list[str] | None]
) -> Overrides:
    """`options_of(group)` returns the options of a group, or None if there is no such group."""
    read = Overrides()
    written: dict[str, Leaf] = {}
    for word in words:
        word = replace(word, secret=holds_secret(word.key, schema))
        if not word.key:
            read.problems.append(Problem(word.text, "is not an override; write key=value", word.where))
            continue
        if word.is_hydra:
            message = "is a setting of Hydra, used only in a sweep; add --multirun, or remove it"
            read.problems.append(Problem(word.key, message, word.where))
            continue
        if word.parsed.is_sweep_override():
            message = "is a sweep; add --multirun, or quote the value if it is one text, or write a list as [a,b]"
            read.problems.append(Problem(word.key, message, word.where))
            continue
        options = options_of(word.key)
        value = word.parsed.value()
        chooses = options is not None and not isinstance(value, dict)
        if chooses and (word.key not in schema.keys):
            _read_group(word, value, options or [], read)
        elif word.parsed.package is not None:
            message = f"no group {word.key!r}, and only a group has a package (`@{word.parsed.package}`)"
            read.problems.append(Problem(word.key, message, word.where))
        else:
            _read_value(word, value, schema, options_of, read, written)
    return read


def holds_secret(path: str, schema: Schema) -> bool:
    """Whether an override contains a secret, so that no message may show it: by the schema's mark (also of the
    suggested key), or by its name."""
    if any(is_secret_name(part) for part in path.split(".")):
        return True
    known = path in schema.keys or path in schema.sections or schema.map_above(path) is not None
    path = path if known else suggest(path, schema.names()) or path
    keys = (key for name, key in schema.keys.items() if name == path or name.startswith(path + "."))
    return any(key.constraints.secret for key in keys)


def _read_group(word: OverrideWord, value: Any, options: list[str], read: Overrides) -> None:
    if word.parsed.is_delete() or value is None or value == "null":
        read.groups[word.group_key] = GroupChoice(word.group_key, (), word.where)
        return
    chosen = tuple(str(option) for option in value) if isinstance(value, list) else (str(value),)
    if word.key == "experiment" and isinstance(value, list):
        read.problems.append(Problem("experiment", "takes one kind, not a list", word.where))
        return
    unknown = [option for option in chosen if option not in options]
    for option in unknown:
        guess = nearest(option, options)
        hint = f"; did you mean {guess[0]}?" if guess else ""
        message = f"the group has no option {option!r}{hint or '.'} There are: {', '.join(options)}"
        read.problems.append(Problem(word.group_key, message, word.where))
    if not unknown:
        read.groups[word.group_key] = GroupChoice(word.group_key, chosen, word.where)


def _read_value(
    word: OverrideWord,
    value: Any,
    schema: Schema,
    options_of: Callable[[str], list[str] | None],
    read: Overrides,
    written: dict[str, Leaf],
) -> None:
    path = ALIASES[word.key] if ALIASES.get(word.key) in schema.keys else word.key
    inside_map = schema.map_above(path) is not None
    parsed = word.parsed
    if parsed.is_add() and not inside_map:
        known = path in schema.keys or path in schema.sections
        message = (
            "exists already; remove the `+`"
            if known
            else (f"no such key, and `+` adds only inside maps{did_you_mean(path, schema.names())}")
        )
        read.problems.append(Problem(word.key, message, word.where))
        return
    if parsed.is_delete() and inside_map:
        read.values.append(Layer("override", deletes=path))
        return
    node = to_yaml_node(None if parsed.is_delete() else value)
    leaves = LayerReader(schema, lambda _: word.where).read_at(word.key, node)
    if not leaves.leaves and not leaves.problems and not leaves.foreign:
        return
    if leaves.problems:
        read.problems += [_or_group(problem, word, options_of) for problem in leaves.problems]
        return
    read.foreign += leaves.foreign
    for leaf in leaves.leaves:
        first = written.setdefault(leaf.path, leaf)
        if first.written != leaf.written and not ALIASES.keys().isdisjoint((first.written, leaf.written)):
            message = f"{first.written} and {leaf.written} are the same key; keep one"
            read.problems.append(Problem(leaf.path, message, word.where))
            return
    for leaf in leaves.leaves:
        if not MAP_NAMES.fullmatch(schema.declared_path(leaf.path).replace("[]", "")):
            message = "on the command line a name in a map consists of letters, digits, `_` and `-`; set it in a file"
            read.problems.append(Problem(leaf.written, message, word.where))
            return
    for leaf in leaves.leaves:
        read.values.append(Layer("override", (leaf,)))


def _or_group(problem: Problem, word: OverrideWord, options_of: Callable[[str], list[str] | None]) -> Problem:
    """An unknown key may be a misspelt group."""
    if "." in word.key or not problem.message.startswith("no such key"):
        return problem
    groups = options_of("") or []
    guess = nearest(word.key, groups, 0.7)
    if not guess or guess[0] == word.key:
        return problem
    return Problem(problem.key, f"no such key or group; did you mean {guess[0]}={word.parsed.value()}?", problem.where)


def to_yaml_node(value: Any) -> YamlNode:
    """A value of the command line as a YAML node."""
    if isinstance(value, dict):
        return YamlNode({str(name): to_yaml_node(item) for name, item in value.items()}, 0)
    if isinstance(value, list):
        return YamlNode([to_yaml_node(item) for item in value], 0)
    return YamlNode(value, 0)
