"""Types of arguments of what is built in, as the plan checks them: read in the source, without importing it."""

import ast
import math
import re
from typing import Any, Literal, get_args

Pattern = str
"""A regular expression."""

Share = float
"""From 0 to 1."""

Count = int
"""1 or more."""

Positive = float
"""Above 0."""

Take = Literal["whole", "final", "boxed", "tag", "last_line", "last_number"]
"""Which part of an answer counts: all of it; its declared result (`<answer>`, \\boxed, `####`, `answer is`); the last
\\boxed; the last `<answer>`; its last line; its last number."""

TOOLS = ("calculator", "python", "search")
"""Tools that come with the package."""

ToolNames = list[str]
"""Names of built-in tools, or functions as `package.module:function` or `file.py:function`."""

INLINE_TOOLS = ("python", "calculator")
"""Those that `tool_integrated` can run in the middle of an answer."""

InlineTools = str | list[str]
"""Their names, as a list or a text with semicolons."""

ResultText = str
"""A text that has {result} in it."""

ExportStyle = Literal["concat", "individual"]
"""Whether a conversation is one sequence, or each of its answers."""

CallFormatName = Literal["json", "xml", "python"]
"""How an answer calls tools."""

KINDS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "bool": ("true or false", bool),
    "int": ("an integer", int),
    "float": ("a number", (int, float)),
    "str": ("a text", str),
    "list": ("a list", list),
    "dict": ("a mapping", dict),
    "Pattern": ("a regular expression", str),
    "ResultText": ("a text with {result}", str),
    "Share": ("a number from 0 to 1", (int, float)),
    "Positive": ("a number above 0", (int, float)),
    "Count": ("an integer of 1 or more", int),
}
"""Annotation -> what it means, and the types of its values."""

CHOICES = {"Take": get_args(Take), "CallFormatName": get_args(CallFormatName), "ExportStyle": get_args(ExportStyle)}
"""Annotation -> its values."""


LITERAL = ("Literal", "typing.Literal")


def misfit(annotation: str, value: Any) -> str:
    """Why a value is not of the annotated type, given as source text; empty if it is, or if the type is not known."""
    variants = [_name(node) for node in _variants(ast.parse(annotation, mode="eval").body)]
    if any(variant is None for variant in variants) or (value is None and "None" in variants):
        return ""
    reasons = [_reason(str(variant), value) for variant in variants if variant != "None"]
    return "" if "" in reasons else f"is {value!r:.60}; expected {' or '.join(reasons)}"


def literal_misfit(annotation: str, value: Any) -> str:
    """The same for an annotation of a user, where only the values of `Literal[...]` are known."""
    variants = _variants(ast.parse(annotation, mode="eval").body)
    literals = [node for node in variants if _name(node) != "None"]
    return misfit(annotation, value) if literals and all(map(_values, literals)) else ""


def inline_tools(value: Any) -> list[Any]:
    return value.split(";") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []


def _reason(kind: str, value: Any) -> str:
    """What is expected instead; empty if the value is of the kind."""
    if kind == "ToolNames":
        known = isinstance(value, list) and all(":" in str(each) or each in TOOLS for each in value)
        return "" if known else f"a list of {', '.join(TOOLS)}, or functions as file.py:function"
    if kind == "InlineTools":
        names = inline_tools(value)
        return (
            "" if names and all(each in INLINE_TOOLS for each in names) else f"a list of {' and '.join(INLINE_TOOLS)}"
        )
    if choices := CHOICES.get(kind) or _values(ast.parse(kind, mode="eval").body):
        known = any(value == each and type(value) is type(each) for each in choices)
        return "" if known else f"one of {', '.join(map(str, choices))}"
    meaning, types = KINDS[kind]
    is_of_kind = isinstance(value, types) and (kind == "bool" or not isinstance(value, bool))
    if not is_of_kind:
        return meaning
    if isinstance(value, float) and not math.isfinite(value):
        return f"{meaning} that is finite"
    if (
        (kind == "Share" and not 0 <= value <= 1)
        or (kind == "Count" and value < 1)
        or (kind == "Positive" and value <= 0)
        or (kind == "ResultText" and "{result}" not in value)
    ):
        return meaning
    if kind == "Pattern":
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError) as error:
            return f"{meaning} ({error})"
    return ""


def _variants(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_variants(node.left), *_variants(node.right)]
    return [node]


def _values(node: ast.expr) -> tuple[Any, ...]:
    """Those of `Literal[...]`; empty for another type, or where the source does not tell."""
    if not isinstance(node, ast.Subscript) or ast.unparse(node.value) not in LITERAL:
        return ()
    values = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    constants = tuple(each.value for each in values if isinstance(each, ast.Constant))
    return constants if len(constants) == len(values) else ()


def _name(node: ast.expr) -> str | None:
    """`list[str]` -> `list`; `Literal[...]` as it is; None for a type that is not checked."""
    if _values(node):
        return ast.unparse(node)
    node = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(node, ast.Constant) and node.value is None:
        return "None"
    known = isinstance(node, ast.Name) and (node.id in KINDS or node.id in (*CHOICES, "ToolNames", "InlineTools"))
    return node.id if known and isinstance(node, ast.Name) else None
