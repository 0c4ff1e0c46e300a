"""Reads YAML files strictly: with line numbers, without duplicate keys, `true` and `false` the only booleans.

Values are made from PyYAML's events, for three reasons: line numbers; no implicit conversions of YAML 1.1 (`yes`,
`1:30`, `010`); and a message for hostile files (deep nesting, exponential aliases).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from areal_like.config.problems import Problem

MAX_BYTES = 5_000_000
MAX_DEPTH = 40
MAX_NODES = 50_000
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
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
        file.root = _NodeBuilder(shown, file.problems).build(text)
    except _UnreadableYaml as refusal:
        return refuse(refusal.message, refusal.line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return refuse(_syntax_message(error, text), mark.line + 1 if mark else None)
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
        root = _NodeBuilder("", []).build(text)
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


class _NodeBuilder:
    """Makes nodes from PyYAML's events."""

    def __init__(self, shown: str, problems: list[Problem]) -> None:
        self.shown, self.problems = shown, problems
        self.anchors: dict[str, YamlNode] = {}
        self.open_anchors: set[str] = set()
        self.nodes = 0
        self.path: list[str] = []

    def build(self, text: str) -> YamlNode | None:
        events: Iterator[Any] = iter(yaml.parse(text, Loader=_Loader))
        root: YamlNode | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _UnreadableYaml(_line(event), "contains more than one document (`---`); keep one")
                root = self._node(next(events), events, 0)
        return root

    def _count(self, line: int, depth: int) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _UnreadableYaml(
                line, f"contains more than {MAX_NODES} values (aliases included); it is not a configuration"
            )
        if depth > MAX_DEPTH:
            raise _UnreadableYaml(line, f"is nested more than {MAX_DEPTH} levels deep")

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> YamlNode:
        line = _line(event)
        self._count(line, depth)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.open_anchors or event.anchor not in self.anchors:
                raise _UnreadableYaml(line, f"alias *{event.anchor} refers to itself or is not defined")
            return self._copy(self.anchors[event.anchor], line, depth)
        if isinstance(event, yaml.ScalarEvent):
            node = YamlNode(self._scalar(event, line), line)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            if event.tag and not event.implicit:
                raise _UnreadableYaml(line, f"tag {event.tag} is not supported; write a plain value")
            if event.anchor:
                self.open_anchors.add(event.anchor)
            make = self._sequence if isinstance(event, yaml.SequenceStartEvent) else self._mapping
            node = YamlNode(make(events, depth), line)
            self.open_anchors.discard(event.anchor or "")
        else:
            raise _UnreadableYaml(line, "is not YAML")
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def _copy(self, node: YamlNode, line: int, depth: int) -> YamlNode:
        self._count(line, depth)
        if isinstance(node.value, dict):
            return YamlNode({name: self._copy(item, line, depth + 1) for name, item in node.value.items()}, line)
        if isinstance(node.value, list):
            return YamlNode([self._copy(item, line, depth + 1) for item in node.value], line)
        return YamlNode(node.value, line)

    def _scalar(self, event: Any, line: int) -> Any:
        if event.tag and event.tag not in ("!", "tag:yaml.org,2002:str"):
            raise _UnreadableYaml(line, f"tag {event.tag} is not supported; write a plain value")
        return scalar(event.value) if event.implicit[0] and not event.style else event.value

    def _sequence(self, events: Iterator[Any], depth: int) -> list[YamlNode]:
        items = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._node(event, events, depth + 1))
        return items

    def _mapping(self, events: Iterator[Any], depth: int) -> dict[str, YamlNode]:
        entries: dict[str, YamlNode] = {}
        merged: dict[str, YamlNode] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            line = _line(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise _UnreadableYaml(line, "a key must be a plain name")
            name = event.value
            self.path.append(name)
            value = self._node(next(events), events, depth + 1)
            self.path.pop()
            if name == "<<" and not event.style:
                for source in value.value if isinstance(value.value, list) else [value]:
                    if not isinstance(source.value, dict):
                        raise _UnreadableYaml(line, "`<<` merges mappings only")
                    merged = {**source.value, **merged}
            elif name in entries:
                first = entries[name].line
                message = f"is defined twice (first on line {first}); keep one"
                self.problems.append(Problem(".".join([*self.path, name]), message, f"{self.shown}:{line}"))
            else:
                value.line = line if not isinstance(value.value, dict | list) else value.line
                entries[name] = YamlNode(value.value, line)
        return {**{name: node for name, node in merged.items() if name not in entries}, **entries}


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
