"""Finds the result in the text of an answer, and numbers in a result."""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from areal_like.config.argument_types import Take
from areal_like.data.answer_text import HASHES, boxed, tagged

DECLARED = re.compile(rf"(?:{HASHES}|\b(?:answer|option|choice)\s*(?:is|:|=))\s*+:?\s*+([^\n]+)", re.IGNORECASE)
REASON = re.compile(r"(?:[,;]|(?<!\s))\s++(?:since|because|as|which|where)\b|[,;]\s+so\b|[.;]\s+(?=[A-Z])")
"""Begins what follows a declared result in its line."""
NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>(?:(?:^|(?<=[=(:])|(?<=[=(:]\s))[-+\u2212]\s|[-+\u2212])?)[$€£]?"
    r"(?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?P<part>\.\d+)?(?P<power>[eE][-+]?\d{1,3})?"
    r"(?:\s?/\s?(?P<below>\d+(?:\.\d+)?))?(?P<percent>\s?\\?%)?"
)
COUNTED = re.compile(
    rf"(?P<number>{NUMBER.pattern})\s+(?!(?:pi|sqrt|times|over|or|and|plus|minus|squared|cubed|to|by|of|mod|divided|"
    r"hundred|thousand|million|billion|dozen|percent)\b)[A-Za-z]{2,}[A-Za-z' /-]*",
    re.IGNORECASE,
)
"""A number of things: `18 dollars`. Not where a word changes the number."""
MAX_RESULT = 2000
"""A longer result is never a number."""


def take(which: Take, text: str) -> str | None:
    """This part of an answer; None if the answer has none."""
    return TAKEN[which](text)


def results(answer: Any) -> list[str]:
    """The right results of a row: one, or a list of which any is right. A worked solution stands for its result."""
    answers = answer if isinstance(answer, list | tuple) else [answer]
    return [stated if (stated := final(text)) is not None else text for text in map(_text, answers)]


def final(text: str) -> str | None:
    """What an answer declares to be its result, the most explicit way first."""
    for each in (tagged, boxed, declared):
        if (found := each(text)) is not None:
            return found if (inner := boxed(found)) is None else inner
    return None


def readings(text: str) -> list[str]:
    """Ways to read the result of an answer. One that is declared in words may be followed by a reason or a unit, which
    do not count; without a declared one its last number."""
    stated = final(text)
    if stated is None:
        return [found] if (found := last_number(text)) is not None else []
    if tagged(text) is not None or boxed(text) is not None:
        return [stated]
    alone = _bare(REASON.split(stated, maxsplit=1)[0])
    counted = COUNTED.fullmatch(alone) if len(alone) <= MAX_RESULT else None
    return list(dict.fromkeys([stated, alone, *([counted["number"]] if counted else [])]))


def declared(text: str) -> str | None:
    """What follows the last `####`, `answer is` or `answer:`."""
    found = DECLARED.findall(text)
    return _bare(found[-1]) if found else None


def last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def last_number(text: str) -> str | None:
    found = list(_numbers(text))
    return found[-1].group().strip() if found else None


def number(text: str) -> Fraction | None:
    """The value of a text that is one number, with or without a currency; None for any other text."""
    return _value(text, percent=1)


def share(text: str) -> Fraction | None:
    """As `number`, but `50%` is one half."""
    return _value(text, percent=100)


def _value(text: str, percent: int) -> Fraction | None:
    bare = _bare(text)
    match = NUMBER.fullmatch(bare) if len(bare) <= MAX_RESULT else None
    if match is None or not (match["whole"] or match["part"]):
        return None
    value = Fraction((match["whole"] or "0").replace(",", "") + (match["part"] or "") + (match["power"] or ""))
    below = Fraction(match["below"] or 1)
    if below == 0:
        return None
    value = value / below / (percent if match["percent"] else 1)
    return -value if match["sign"].strip() in ("-", "\u2212") else value


def _numbers(text: str) -> Iterator[re.Match[str]]:
    return (match for match in NUMBER.finditer(text) if match["whole"] or match["part"])


def _bare(text: str) -> str:
    """Without the marks around a result: `**5**.` -> `5`"""
    bare = text.strip().rstrip(".").strip()
    while len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "*$`\"'":
        bare = bare[1:-1].strip()
    return bare


def _text(answer: Any) -> str:
    return answer if isinstance(answer, str) else str(answer)


TAKEN: dict[str, Callable[[str], str | None]] = {
    "whole": str.strip,
    "final": final,
    "boxed": boxed,
    "tag": tagged,
    "last_line": last_line,
    "last_number": last_number,
}
