"""How a configuration key is declared: a dataclass field made by `key`, its help a string literal below it.

The declaration is the only source of a key's name, type, default, choices, range and help. Help, documents, JSON
Schema and checks are derived from it.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, dataclass_transform

Auto: TypeAlias = Literal["auto"]
"""In a union with a type (`int | Auto`): the value may be derived from the machine."""

METADATA_KEY = "areal_like"


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
) -> Any:
    """A configuration key. Each instance gets a copy of a list or map.

    A default of the form "${a.b}" is an interpolation from the root of the experiment. `required`: the
    value must be set by a file, a group or the command line; the default is then None. For a list, `choices`, ranges
    and `pattern` apply to each item.
    """
    constraints = Constraints(choices, ge, gt, le, lt, pattern, pattern_hint, secret, required)
    metadata = {METADATA_KEY: constraints}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(cls: type, /, **overrides: Any) -> Any:
    """A nested section that is always present. `overrides` replace defaults of `cls`; a key of a section below is
    written with a double underscore (`optimizer__lr=1e-4`); `optimizer={}` expands an optional section that is None in
    `cls`, `optimizer=None` sets it to None."""
    return field(default_factory=cls, metadata={METADATA_KEY: Constraints(), "overrides": overrides})


def optional_section(cls: type, /) -> Any:
    """A nested section that is absent (null) until a file, a group or an override sets something below it."""
    return field(default=None, metadata={METADATA_KEY: Constraints(), "section": cls})


@dataclass_transform(kw_only_default=True, field_specifiers=(key, section, optional_section, field))
def config(cls: type) -> type:
    """Marks a class as a section of the configuration (a keyword-only dataclass)."""
    return dataclass(kw_only=True, eq=True, repr=False)(cls)
