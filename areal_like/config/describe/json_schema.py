"""The schema as JSON Schema, for completion and checks in editors."""

from collections.abc import Sequence
from typing import Any

from areal_like.config.describe.help import meaning
from areal_like.config.dialects.areal import FOREIGN_SECTIONS
from areal_like.config.names import ALIASES
from areal_like.config.redact import redact
from areal_like.config.schema import Key, Kind, Schema, Section
from areal_like.config.sources.library import data_folder

REFERENCE = {"type": "string", "pattern": r"\$\{"}
NULL: list[dict[str, Any]] = [{"type": "null"}, {"const": "None"}]
TYPES = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}


def json_schema(schemas: Sequence[Schema]) -> dict[str, Any]:
    """One JSON Schema for the files of these experiments."""
    root: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "areal-like experiment",
        "type": "object",
        "properties": {
            "defaults": {
                "type": "array",
                "description": "Included groups and files: `- group: option` pairs, files, and `_self_`.",
                "items": {
                    "anyOf": [{"type": "string"}, {"type": "object", "maxProperties": 1, "properties": _groups()}]
                },
            },
            "hydra": {"type": "object", "description": "Settings of Hydra itself, for sweeps."},
        },
        "additionalProperties": False,
    }
    for schema in schemas:
        for path, section in schema.sections.items():
            if path and "[]" not in path:
                node = _place(root, path)
                if node is not None and "anyOf" not in node:
                    inner = {"type": "object", "properties": {}, "additionalProperties": False}
                    choices: list[Any] = [inner, REFERENCE, *(NULL if section.optional else [])]
                    node.update(description=meaning(section), anyOf=choices)
        for path, reason in FOREIGN_SECTIONS.items():
            node = _place(root, path)
            if node is not None:
                node.update({"type": "object", "description": f"Accepted, not used: {reason}."})
        for path, key in schema.keys.items():
            if "[]" not in path:
                node = _place(root, path)
                if node is not None and not node:
                    node.update(_described(schema, key))
        for alias, real in ALIASES.items():
            if real in schema.keys:
                node = _place(root, alias)
                if node is not None and not node:
                    node.update(_described(schema, schema.keys[real]))
                    node["description"] = f"Short for {real}. " + node.get("description", "")
    return root


def _groups() -> dict[str, Any]:
    """The shipped groups and options, for completion; a user may have more."""
    folders = sorted(folder for folder in data_folder("conf").iterdir() if folder.is_dir())
    options = {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in folders}
    more: list[dict[str, Any]] = [{"type": ["string", "null"]}, {"type": "array"}]
    return {group: {"anyOf": [{"enum": names}, *more]} for group, names in options.items()}


def _place(root: dict[str, Any], path: str) -> dict[str, Any] | None:
    """The node of `path`, created if missing; None if a section above it is missing."""
    node = root
    *above, name = path.split(".")
    for step in above:
        child = node["properties"].get(step)
        if child is None or "anyOf" not in child:
            return None
        node = child["anyOf"][0]
    leaf: dict[str, Any] = node["properties"].setdefault(name, {})
    return leaf


def _described(schema: Schema, key: Key) -> dict[str, Any]:
    described: dict[str, Any] = {"description": meaning(key), "anyOf": [_typed(schema, key, key.kind), REFERENCE]}
    if key.kind.auto:
        described["anyOf"].append({"const": "auto"})
    if key.kind.optional:
        described["anyOf"] += NULL
    if not key.constraints.required and redact(key.name, key.default, key.constraints.secret) == key.default:
        described["default"] = key.default
    return described


def _item(schema: Schema, path: str) -> dict[str, Any]:
    """An item of a list of sections, or a section in it."""
    below = list(schema.children(path))
    return {
        "type": "object",
        "properties": {each.name: _item_value(schema, each) for each in below},
        "additionalProperties": False,
        "required": [each.name for each in below if each.constraints.required],
    }


def _item_value(schema: Schema, entry: Key | Section) -> dict[str, Any]:
    if isinstance(entry, Key):
        return _described(schema, entry)
    choices = [_item(schema, entry.path), *(NULL if entry.optional else [])]
    return {"description": meaning(entry), "anyOf": choices}


def _typed(schema: Schema, key: Key, kind: Kind, item: bool = False) -> dict[str, Any]:
    constraints = key.constraints
    choices = constraints.choices if constraints.choices is not None else kind.choices
    if kind.name == "list":
        inner = kind.item or Kind("any", optional=True)
        if inner.name == "section":
            return {"type": "array", "items": _item(schema, f"{key.path}[]")}
        return {"type": "array", "items": {"anyOf": [_typed(schema, key, inner, item=True), REFERENCE]}}
    if kind.name == "map":
        inner = kind.item or Kind("any", optional=True)
        return {"type": "object", "additionalProperties": {"anyOf": [_typed(schema, key, inner), REFERENCE]}}
    if kind.name in ("any", "section"):
        return {}
    if kind.name == "union":
        return {"anyOf": [_typed(schema, key, variant) for variant in kind.variants]}
    if choices is not None:
        return {"enum": list(choices)}
    typed: dict[str, Any] = {"type": TYPES[kind.name]} if kind.name != "str" else {"type": ["string", "integer"]}
    limits = {
        "minimum": constraints.ge,
        "exclusiveMinimum": constraints.gt,
        "maximum": constraints.le,
        "exclusiveMaximum": constraints.lt,
    }
    typed.update({name: limit for name, limit in limits.items() if limit is not None})
    if constraints.pattern is not None:
        typed["pattern"] = f"^(?:{constraints.pattern})$"
    return typed
