"""Templates of prompts: a text with the names of columns in braces."""

import re
from string import Formatter
from typing import NamedTuple

COLUMN = re.compile(r"[^\W\d][\w-]*(\.[\w-]+)*")


class TemplatePart(NamedTuple):
    """A text, and the column that follows it; None at the end."""

    text: str
    column: str | None


def parse_template(template: str) -> tuple[TemplatePart, ...]:
    """The parts of a template; raises ValueError if it has none to be filled, or is malformed."""
    remedy = "write {column} for the value of a column, and {{ or }} for a brace"
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as fault:
        raise ValueError(f"{fault}; {remedy}") from None
    for _, column, form, conversion in parsed:
        if column is not None and (form or conversion or not COLUMN.fullmatch(column)):
            shown = column + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            raise ValueError(f"{{{shown}}} is not the name of a column; {remedy}")
    if not any(column is not None for _, column, _, _ in parsed):
        raise ValueError(f"it has no column, so that all prompts would be the same; {remedy}")
    return tuple(TemplatePart(text, column) for text, column, _, _ in parsed)
