"""Checks one value against its key: type, choices, range. Messages say what is wrong and what is allowed."""

import math
import re
import shlex
from typing import Any

from areal_like.config.fields import Constraints
from areal_like.config.schema import NO_CONSTRAINTS, Key, Kind
from areal_like.config.suggest import nearest

YAML_11_BOOLEANS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
ARTICLES = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "list": "a list",
    "map": "a mapping",
}


COMMAND = "command"
"""Name of the keys that hold the words of a command."""
PLAIN_WORD = re.compile(r"[\w./-]+")


class InvalidValue(Exception):
    """An invalid value; the message begins with the value."""


def check_key(key: Key, value: Any) -> Any:
    """The value, converted (an int for a float key becomes a float); raises InvalidValue."""
    if key.kind.name == "list" and key.name == COMMAND and isinstance(value, str) and len(command_words(value)) > 1:
        raise InvalidValue(f"{show_value(value)} is not a list; write {list_of_words(value)}")
    return check_value(key.kind, key.constraints, value)


def command_words(command: str) -> list[str]:
    """Of a command as a shell reads it; none of one that it cannot read."""
    try:
        return [] if is_interpolation(command) else shlex.split(command)
    except ValueError:
        return []


def list_of_words(command: str) -> str:
    """As a list of the command line and of YAML."""
    words = command_words(command)
    return f"[{','.join(word if PLAIN_WORD.fullmatch(word) else repr(word) for word in words)}]"


def check_value(kind: Kind, constraints: Constraints, value: Any, references: bool = True) -> Any:
    """`references` is false once they are resolved: then `${` is ordinary text."""
    if references and is_interpolation(value):
        return value
    if value == "???":
        raise InvalidValue("'???' marks a missing value; set it, or remove the key")
    if value is None or (kind.optional and value == "None"):
        if kind.optional or constraints.required:
            return None
        raise InvalidValue(f"null is not allowed here; expected {expectation(kind, constraints)}")
    if kind.auto and value == "auto":
        return value
    if kind.name == "list":
        return _check_list(kind, constraints, value, references)
    if kind.name == "map":
        if not isinstance(value, dict):
            raise InvalidValue(f"{show_value(value)} is not a mapping; write `name: value` lines below it")
        item = kind.item or Kind("any", optional=True)
        return {name: check_value(item, NO_CONSTRAINTS, entry, references) for name, entry in value.items()}
    if kind.name == "union":
        return _check_union(kind, constraints, value, references)
    checked = value if kind.name in ("any", "section") else _check_type(kind, constraints, value)
    _check_constraints(kind, constraints, checked)
    return checked


def _check_type(kind: Kind, constraints: Constraints, value: Any) -> Any:
    expected = expectation(kind, constraints)
    if kind.name == "bool":
        if isinstance(value, bool):
            return value
        hint = YAML_11_BOOLEANS.get(value.lower()) if isinstance(value, str) else None
        raise InvalidValue(
            f"{show_value(value)} is not a boolean; " + (f"write {hint}" if hint else f"expected {expected}")
        )
    if kind.name == "int":
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) >= 2**63:
                raise InvalidValue(f"{show_value(value)} is too large for an integer")
            return value
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            raise InvalidValue(f"{show_value(value)} is not an integer; write {int(value)}")
        raise InvalidValue(f"{show_value(value)} is not an integer; expected {expected}")
    if kind.name == "float":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidValue(f"{show_value(value)} is not a number; expected {expected}")
        try:
            number = float(value)
        except OverflowError:
            raise InvalidValue(f"{show_value(value)} is too large for a number") from None
        if not math.isfinite(number):
            raise InvalidValue(f"{number} is not a finite number; expected {expected}")
        return number
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    quoted = "true" if value is True else "false" if value is False else value
    if isinstance(value, bool | float):
        raise InvalidValue(
            f'{show_value(value)} is not a string; write it in quotes ("{quoted}") if it is meant as one'
        )
    raise InvalidValue(f"{show_value(value)} is not a string; expected {expected}")


def _check_list(kind: Kind, constraints: Constraints, value: Any, references: bool) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidValue(
            f"{show_value(value)} is not a list; write [{show_value(value) if not isinstance(value, dict) else '...'}]"
        )
    item = kind.item or Kind("any", optional=True)
    checked = []
    for index, entry in enumerate(value):
        try:
            checked.append(check_value(item, constraints, entry, references))
        except InvalidValue as refusal:
            raise InvalidValue(f"item {index + 1}: {refusal}") from None
    return checked


def _check_union(kind: Kind, constraints: Constraints, value: Any, references: bool) -> Any:
    for variant in kind.variants:
        try:
            return check_value(variant, constraints, value, references)
        except InvalidValue:
            continue
    raise InvalidValue(f"{show_value(value)} matches none of: {kind}")


def _check_constraints(kind: Kind, constraints: Constraints, value: Any) -> None:
    choices = constraints.choices if constraints.choices is not None else kind.choices
    if choices is not None and value not in choices:
        guess = nearest(str(value), [str(choice) for choice in choices])
        hint = f"; did you mean {guess[0]}?" if guess else ""
        raise InvalidValue(f"{show_value(value)} is not one of {', '.join(map(str, choices))}{hint}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        outside = (
            (constraints.ge is not None and value < constraints.ge)
            or (constraints.gt is not None and value <= constraints.gt)
            or (constraints.le is not None and value > constraints.le)
            or (constraints.lt is not None and value >= constraints.lt)
        )
        if outside:
            raise InvalidValue(f"{show_value(value)} is out of range; expected {expectation(kind, constraints)}")
    if constraints.pattern is not None and isinstance(value, str) and not re.fullmatch(constraints.pattern, value):
        raise InvalidValue(f"{show_value(value)} does not fit: {constraints.pattern_hint or constraints.pattern}")


def expectation(kind: Kind, constraints: Constraints) -> str:
    """What a key accepts: `a number > 0`, `one of a, b or null`."""
    choices = constraints.choices if constraints.choices is not None else kind.choices
    if choices is not None:
        text = "one of " + ", ".join(map(str, choices))
    elif kind.name == "union":
        text = " or ".join(expectation(variant, NO_CONSTRAINTS) for variant in kind.variants)
    else:
        text = ARTICLES.get(kind.name, "a value")
    limits = range_text(constraints)
    if limits:
        text += " " + limits
    if kind.auto:
        text += ", or auto"
    if kind.optional:
        text += ", or null"
    return text


def range_text(constraints: Constraints) -> str:
    limits = ((">=", constraints.ge), (">", constraints.gt), ("<=", constraints.le), ("<", constraints.lt))
    return " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)


def is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def show_value(value: Any) -> str:
    """A value as a message shows it: short, strings in quotes."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
