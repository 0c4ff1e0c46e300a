"""Finds the result that an answer states: in a tag, in a box, or declared in words."""

import re
from collections.abc import Callable
from typing import Any

from areal_like.config.argument_types import Take
from areal_like.data.answer_text import HASHES, boxed, tagged
from areal_like.rollout.episodes.rewards.numbers import (
    counted,
    last_number,
    last_scaled_number,
    only_number,
    without_marks,
)

DECLARING = re.compile(
    rf"(?:(?P<main>{HASHES}|\banswer\s*(?:is|:|=))|\b(?:option|choice)\s*(?:is|:|=))\s*+:?\s*+", re.I
)
DISPLAYED = re.compile(r"(?:\\\[|\\\(|\$\$)[^\S\n]*+\n(.*?)(?:\\\]|\\\)|\$\$)", re.DOTALL)
"""A formula on lines of its own."""
LEAD = re.compile(r"(?:(?:therefore|thus|hence|then|so|simply|just|exactly|indeed|clearly|equal\s+to)\b,?\s*+)++", re.I)
"""Words before a declared result."""
ABOUT = re.compile(r"^(?:about|approximately|around|roughly)\s++", re.I)
"""Before a number; a text may begin with it."""
REASON = re.compile(
    r"(?:[,;]|(?<!\s))\s++(?:since|because|as|which|where)\b|[,;]\s+(?:so\b|(?:right|correct|okay|ok|yes)\?)|"
    r"[.;]\s+(?=[A-Z])"
)
"""Begins what follows a declared result in its line."""
BOLD = re.compile(r"(?<![\w)\]}])\*\*(?=\S)|(?<=[^\s*])\*\*(?![\w({\[\\+-]|\.\d)")
"""Either end of bold text; not a power."""


def take(which: Take, text: str) -> str | None:
    """This part of an answer; None if the answer has none."""
    return TAKEN[which](text)


def results(answer: Any) -> list[str]:
    """The right results of a row: one, or a list of which any is right. A worked solution stands for its result. Raises
    ValueError where there is none."""
    texts = [text for text in map(_text, right_values(answer)) if text.strip()]
    if not texts:
        raise ValueError(f"the row's answer is empty: {answer!r:.80}")
    return [stated if (stated := final(text)) is not None else text for text in texts]


def alternatives(answer: Any) -> list[Any]:
    """The values of a row's `answer`, of which any is right."""
    return list(answer) if isinstance(answer, list | tuple) else [answer]


def right_values(answer: Any) -> list[Any]:
    """The same without what is missing. Raises ValueError where nothing is left, and for a mapping, which is none."""
    values = [each for each in alternatives(answer) if each is not None and each == each]
    if not values or any(isinstance(each, dict) for each in values):
        raise ValueError(f"the row's answer is no text or number: {answer!r:.80}")
    return values


def final(text: str) -> str | None:
    """What an answer declares to be its result, the most explicit way first."""
    for each in (tagged, boxed, declared):
        if (found := each(text)) is not None:
            return found if (inner := boxed(found)) is None else inner
    return None


def readings(text: str, ends: str = "!?") -> list[str]:
    """Ways to read the result of an answer. A unit does not count, nor do a reason and the `ends` of a sentence after a
    result that is declared in words, where it may be the only number of a sentence; without a declared one its last
    number."""
    stated = final(text)
    if stated is None:
        return [found] if (found := last_scaled_number(text)) is not None else []
    if tagged(text) is not None or boxed(text) is not None:
        return with_number(stated)
    before, *reason = REASON.split(stated, maxsplit=1)
    alone = ABOUT.sub("", without_marks(before.rstrip(f"{ends} ")).rstrip("*"))
    # With a reason only what stands before it: a second result in it would be a second guess.
    only = only_number(alone)
    return list(dict.fromkeys([*([] if reason else [stated]), *with_number(alone), *([] if only is None else [only])]))


def with_number(result: str) -> list[str]:
    """The result, and the number in it if it is a number of things."""
    number = counted(result)
    return [result] if number is None else [result, number]


def declared(text: str) -> str | None:
    """What follows the last `####`, `answer is` or `answer:`. In its line an `option is` counts only without these."""
    text = BOLD.sub("", text)
    marks = [mark for mark in DECLARING.finditer(text) if mark.end() < len(text)]
    if not marks:
        return None
    begins = text.rfind("\n", 0, marks[-1].end()) + 1
    of_line = [mark for mark in marks if mark.end() >= begins]
    after = ([mark for mark in of_line if mark["main"]] or of_line)[-1].end()
    if (formula := DISPLAYED.match(text, after)) is not None:
        return without_marks(" ".join(formula[1].split()))
    if (lead := LEAD.match(text, after)) is not None:
        after = lead.end()
    return without_marks(text[after:].partition("\n")[0])


def last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


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
