"""Reads YAML files strictly: with line numbers, without duplicate keys, `true` and `false` the only booleans.

PyYAML composes the nodes, with their lines; the values are made here, without the implicit conversions of YAML 1.1
(`yes`, `1:30`, `010`), and with limits for hostile files (deep nesting, exponential aliases).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from areal_like.config.problems import Problem

MAX_BYTES = 5_000_000
MAX_DEPTH = 40
MAX_NODES = 50_000
TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep"
TOO_MANY = f"contains more than {MAX_NODES} values (aliases included); it is not a configuration"
INT = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)$")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
SPECIAL = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf", "inf", "+inf", ".Inf", ".INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", "nan", ".NaN", ".NAN"), float("nan")),
}
PLAIN = "plain"
"""The tag of an unquoted scalar without a tag of its own."""
UNTAGGED = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:str", PLAIN)
SURELY_FLAT = 10_000
"""Characters. A longer text may be nested so deeply that PyYAML's composer would crash the process."""


@dataclass
class YamlNode:
    """A value with its line; `value` is a scalar, a list of nodes or a dict of nodes."""

    value: Any
    line: int

    def plain(self) -> Any:
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


@dataclass
class YamlFile:
    """A file; `root` is None if it could not be read."""

    path: Path
    shown: str
    root: YamlNode | None
    header: dict[str, str]
    problems: list[Problem]

    def body(self, primary: bool = True) -> dict[str, YamlNode]:
        """The keys of the file without `defaults` and, in the primary file, without `hydra`."""
        content = self.root.value if self.root is not None else {}
        return {name: node for name, node in content.items() if name != "defaults" and (name != "hydra" or not primary)}

    def defaults(self) -> list[YamlNode]:
        """The entries of its `defaults:` list as written."""
        node = self.root.value.get("defaults") if self.root is not None else None
        return node.value if node is not None and isinstance(node.value, list) else []


TOML_MESSAGE = (
    "is TOML (the format of prime-rl), and only YAML is supported: start from a shipped experiment such as grpo.yaml, "
    "and copy what you need (docs/keys.md lists the keys of prime-rl)"
)


class _UnreadableYaml(Exception):
    def __init__(self, line: int, message: str) -> None:
        self.line, self.message = line, message


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) YAML scalar."""
    if text in SPECIAL:
        return SPECIAL[text]
    if INT.match(text):
        return int(text) if len(text) < 400 else text
    if FLOAT.match(text):
        return float(text.replace("_", ""))
    return text


def read_yaml(path: Path, shown: str, allow_empty: bool = False) -> YamlFile:
    """Reads one file; problems are returned, not raised. `shown` is its name in messages."""
    file = YamlFile(path, shown, None, {}, [])

    def refuse(message: str, line: int | None = None) -> YamlFile:
        file.problems.append(Problem(shown, message, f"{shown}:{line}" if line else ""))
        return file

    if path.is_dir():
        return refuse("is a directory; name a YAML file")
    if path.suffix == ".toml":
        return refuse(TOML_MESSAGE)
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return refuse("no such file")
    except OSError as error:
        return refuse(f"cannot be read ({error.strerror}); check its permissions")
    if len(content) > MAX_BYTES:
        return refuse(f"is larger than {MAX_BYTES // 1_000_000} MB; it is not a configuration")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return refuse(
            f"is not UTF-8 text (byte {error.start}); save it as UTF-8", content[: error.start].count(b"\n") + 1
        )
    file.header = _header(text)
    try:
        file.root = _NodeReader(shown, file.problems).read(text)
    except _UnreadableYaml as refusal:
        return refuse(refusal.message, refusal.line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return refuse(_syntax_message(error, text), mark.line + 1 if mark else None)
    except RecursionError:  # of a PyYAML without libyaml
        return refuse(TOO_DEEP)
    except yaml.YAMLError as error:
        return refuse(f"is not YAML: {' '.join(str(error).split())}")
    if file.root is None or file.root.value is None:
        file.root = YamlNode({}, 1) if allow_empty else None
        if allow_empty:
            return file
        return refuse("is empty; an experiment needs at least `experiment_name:`")
    if not isinstance(file.root.value, dict):
        file.root = None
        return refuse("must be a mapping of keys to values (`key: value` lines)", 1)
    return file


def plain_values(text: str) -> dict[str, Any] | None:
    """The values of a text; None if it is no mapping, or is not accepted by `read_yaml`."""
    try:
        root = _NodeReader("", []).read(text)
    except (_UnreadableYaml, yaml.YAMLError):
        return None
    return root.plain() if root is not None and isinstance(root.value, dict) else None


def _header(text: str) -> dict[str, str]:
    """Hydra's header lines at the top, such as `# @package _global_`."""
    header = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        if not line.startswith("#"):
            break
        match = re.match(r"#\s*@(\w+)\s+(\S+)\s*$", line)
        if match:
            header[match[1]] = match[2]
    return header


def _syntax_message(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark or error.context_mark
    line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in (error.problem or ""):
        return "a tab is used for indentation; YAML requires spaces"
    reason = " ".join((error.problem or error.context or "cannot be read").split())
    if mark and reason.startswith(("found undefined alias", "second occurrence")):
        name = line[mark.column :].split()[0].rstrip(",]}")
        return f"alias {name} is not defined" if name[0] == "*" else f"anchor {name} is defined twice; keep one"
    if not mark:
        return f"is not YAML: {reason}"
    cause = _wrong_indent(text, mark) if "flow" not in (error.context or "") else ""
    return f"is not YAML: {cause and f'{cause}: '}{reason}, column {mark.column + 1}"


def _wrong_indent(text: str, mark: Any) -> str:
    """The lines whose indents do not agree, if that may be the cause of a syntax error; else empty."""
    lines = text.splitlines()[: mark.line + 1]
    indents = [(number, len(line) - len(line.lstrip())) for number, line in enumerate(lines, 1) if _has_content(line)]
    if len(indents) < 2 or indents[-1][0] != mark.line + 1 or ": " in lines[-1][: mark.column]:
        return ""
    *above, (before, indent_before), (number, indent) = indents
    if indent > indent_before and not _has_content(lines[before - 1].rpartition(":")[2]):
        return ""
    if indent > indent_before:
        return f"line {number} is indented deeper than line {before}, which has a value already"
    parent = max((at for at, (_, each) in enumerate(above) if each < indent), default=-1)
    if indent == indent_before or any(each == indent for _, each in above[parent + 1 :]):
        return ""
    deeper = f" but deeper than line {above[parent][0]}" if parent >= 0 else ""
    return f"line {number} is indented less than line {before}{deeper}"


def _has_content(line: str) -> bool:
    """Whether it is more than spaces and a comment."""
    return not re.fullmatch(r"\s*(#.*)?", line)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {None: [(PLAIN, re.compile(""))]}


class _NodeReader:
    """Makes values from PyYAML's nodes."""

    def __init__(self, shown: str, problems: list[Problem]) -> None:
        self.shown, self.problems = shown, problems
        self.count = 0
        self.path: list[str] = []
        self.read_before: set[int] = set()
        self.open: set[int] = set()

    def read(self, text: str) -> YamlNode | None:
        if len(text) > SURELY_FLAT:
            _refuse_hostile(text)
        roots = yaml.compose_all(text, Loader=_Loader)
        root = next(roots, None)
        if next(roots, None) is not None:
            starts = (event for event in yaml.parse(text, Loader=_Loader) if isinstance(event, yaml.DocumentStartEvent))
            _, second, *_ = starts
            raise _UnreadableYaml(_line(second), "contains more than one document (`---`); keep one")
        return None if root is None else self._node(root, _line(root), 0)

    def _node(self, node: Any, line: int, depth: int, aliased: bool = False) -> YamlNode:
        """The node as if it stood at `line`; the nodes below an alias have no other line."""
        self.count += 1
        if self.count > MAX_NODES:
            raise _UnreadableYaml(line, TOO_MANY)
        if depth > MAX_DEPTH:
            raise _UnreadableYaml(line, TOO_DEEP)
        if node.tag not in UNTAGGED:
            raise _UnreadableYaml(line, f"tag {node.tag} is not supported; write a plain value")
        if isinstance(node, yaml.ScalarNode):
            return YamlNode(scalar(node.value) if node.tag == PLAIN and not node.style else node.value, line)
        if id(node) in self.open:
            raise _UnreadableYaml(line, "an alias refers to itself; write the value instead")
        aliased = aliased or id(node) in self.read_before
        self.read_before.add(id(node))
        self.open.add(id(node))
        make = self._mapping if isinstance(node, yaml.MappingNode) else self._sequence
        value = make(node, line if aliased else None, depth + 1)
        self.open.remove(id(node))
        return YamlNode(value, line)

    def _sequence(self, node: Any, line: int | None, depth: int) -> list[YamlNode]:
        """`line` is that of the alias that repeats the node."""
        return [self._node(item, line or _line(item), depth, line is not None) for item in node.value]

    def _mapping(self, node: Any, line: int | None, depth: int) -> dict[str, YamlNode]:
        entries: dict[str, YamlNode] = {}
        merged: dict[str, YamlNode] = {}
        for key, child in node.value:
            place = line or _line(key)
            if not isinstance(key, yaml.ScalarNode):
                raise _UnreadableYaml(place, "a key must be a plain name")
            self.path.append(key.value)
            value = self._node(child, place, depth, line is not None)
            self.path.pop()
            if key.value == "<<" and not key.style:
                for source in value.value if isinstance(value.value, list) else [value]:
                    if not isinstance(source.value, dict):
                        raise _UnreadableYaml(place, "`<<` merges mappings only")
                    merged = {**source.value, **merged}
            elif key.value in entries:
                message = f"is defined twice (first on line {entries[key.value].line}); keep one"
                self.problems.append(Problem(".".join([*self.path, key.value]), message, f"{self.shown}:{place}"))
            else:
                entries[key.value] = value
        return {**{name: node for name, node in merged.items() if name not in entries}, **entries}


def _refuse_hostile(text: str) -> None:
    depth, nodes = 0, 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        if depth > MAX_DEPTH:
            raise _UnreadableYaml(_line(event), TOO_DEEP)
        if nodes > 2 * MAX_NODES:  # a key is a node, too
            raise _UnreadableYaml(_line(event), TOO_MANY)


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
