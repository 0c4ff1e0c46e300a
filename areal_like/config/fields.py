"""How a configuration key is declared: a dataclass field made by `key`, its help a string literal below it.

The declaration is the only source of a key's name, type, default, choices, range, rules and help. Help, documents,
JSON Schema and checks are derived from it.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, dataclass_transform

from areal_like.config.problems import Stage

Auto: TypeAlias = Literal["auto"]
"""In a union with a type (`int | Auto`): the value may be derived from the machine."""

METADATA_KEY = "areal_like"

NOT_YET = "is not built yet"


class KeyRule(NamedTuple):
    """Values of a key that are invalid (INVALID), that a start refuses (CANNOT_START), or that a run does not read
    (NO_EFFECT): those that differ from the default. Of a section: of every key below it."""

    stage: Stage
    reason: str
    """`{}` stands for the value."""
    allowed: tuple[Any, ...] = ()
    """Values that it does not apply to, besides the default and null."""
    unless: str = ""
    """Another key on which it depends: in the same section, or dotted from the root."""
    unless_is: tuple[Any, ...] = ()
    """The values of that key for which it does not apply; empty: any but false, 0, empty and null."""
    kinds: tuple[str, ...] = ()
    """Kinds of experiment that it applies to; empty: all."""


def must_follow() -> KeyRule:
    """For a key whose default is another key: no other value is valid. Where that key is overridden, it follows even if
    the file sets it."""
    return KeyRule(Stage.INVALID, "")


def refused(reason: str, *, allowed: tuple[Any, ...] = (), kinds: tuple[str, ...] = ()) -> KeyRule:
    """A start refuses values other than the default and the allowed ones."""
    return KeyRule(Stage.CANNOT_START, reason, allowed, kinds=kinds)


def not_built(what: str, remedy: str, *, allowed: tuple[Any, ...] = ()) -> KeyRule:
    """A start refuses such values until they are built."""
    return refused(f"{what} {NOT_YET}; {remedy}", allowed=allowed)


def no_effect(
    reason: str = "", *, unless: str = "", unless_is: tuple[Any, ...] = (), kinds: tuple[str, ...] = ()
) -> KeyRule:
    """The plan reports such values. With `unless` it gives that key and its value; `reason` says what follows."""
    return KeyRule(Stage.NO_EFFECT, reason, (), unless, unless_is, kinds)


@dataclass(frozen=True)
class Constraints:
    """Constraints of a value besides its type."""

    choices: tuple[Any, ...] | None = None
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    pattern: str | None = None
    pattern_hint: str = ""
    secret: bool = False
    required: bool = False
    rules: tuple[KeyRule, ...] = ()


def key(
    default: Any = None,
    *,
    choices: tuple[Any, ...] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    pattern: str | None = None,
    pattern_hint: str = "",
    secret: bool = False,
    required: bool = False,
    rules: tuple[KeyRule, ...] = (),
) -> Any:
    """A configuration key. Each instance gets a copy of a list or map.

    A default of the form "${a.b}" is an interpolation from the root of the experiment. `required`: the
    value must be set by a file, a group or the command line; the default is then None. For a list, `choices`, ranges
    and `pattern` apply to each item. `rules` are made by the functions above: the plan, the start,
    the help, the JSON Schema and the pages follow from them.
    """
    constraints = Constraints(choices, ge, gt, le, lt, pattern, pattern_hint, secret, required, rules)
    metadata = {METADATA_KEY: constraints}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(cls: type, /, *rules: KeyRule, **overrides: Any) -> Any:
    """A nested section that is always present. `overrides` replace defaults of `cls`; a key of a section below is
    written with a double underscore (`optimizer__lr=1e-4`); `optimizer={}` expands an optional section that is None in
    `cls`, `optimizer=None` sets it to None. `rules` are those of `key`."""
    return field(default_factory=cls, metadata={METADATA_KEY: Constraints(rules=rules), "overrides": overrides})


def optional_section(cls: type, /, *rules: KeyRule) -> Any:
    """A nested section that is absent (null) until a file, a group or an override sets something below it. `rules`
    apply where it is not null."""
    return field(default=None, metadata={METADATA_KEY: Constraints(rules=rules), "section": cls})


@dataclass_transform(kw_only_default=True, field_specifiers=(key, section, optional_section, field))
def config(cls: type) -> type:
    """Marks a class as a section of the configuration (a keyword-only dataclass)."""
    return dataclass(kw_only=True, eq=True, repr=False)(cls)
