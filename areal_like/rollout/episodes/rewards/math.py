"""The built-in reward `math`: 1 for a result that equals the right one as mathematics."""

import logging
import math
import re
from fractions import Fraction
from functools import cache
from typing import Any

from areal_like.config.argument_types import Count
from areal_like.data.answer_text import boxed
from areal_like.rollout.episodes.rewards.numbers import WORDS, number, share, with_mixed_as_latex
from areal_like.rollout.episodes.rewards.stated_result import final, readings, results, with_number

MAX_CHARACTERS, MAX_DEPTH = 500, 12
"""A result that is longer, or has more brackets in each other, takes a parser minutes."""
MAX_EXPONENT, MAX_FACTORIAL, MAX_OF_SUM = 99_999, 9_999, 999
"""Beyond them no computer writes the result down in time; the last is for the power of a sum of symbols."""
POWER = r"(?:\^|\*\*)\s*[{(]?\s*"
EXPONENT = re.compile(rf"([)}}\]]?)\s*{POWER}[-+]?(\d+)(?=(?:\s*{POWER}[-+]?(\d+)(\s*{POWER}[-+]?\d)?)?)")
FACTORIAL = re.compile(r"(\d+)\s*!")
CLOSED_FACTORIAL = re.compile(r"[)}\]]\s*!")
"""Of what is in brackets."""
NESTED_FACTORIAL = re.compile(r"!\s*!")
GROWS_LIKE_FACTORIAL = re.compile(r"\\(?:[dt]?binom|choose|Gamma|mathrm\{Gamma\})")
LONG_NUMBER = re.compile(rf"\d{{{len(str(MAX_FACTORIAL)) + 1},}}")
SUM = re.compile(r"[\d\s+-]*")
COMMAND = re.compile(r"\\[A-Za-z]+")
OPENING = {")": "(", "}": "{", "]": "["}
DECORATION = re.compile(r"\\left|\\right|\\[,;:! ]|\\(?:displaystyle|dfrac|tfrac)|[$\s]")


class MathReward:
    """Compares the result of an answer with the row's `answer` (a result, a worked solution, or a list of which any is
    right): equal texts and numbers at once, everything else by math-verify.

    `boxed`: a result counts only in \\boxed. `digits`: decimal places to which numbers are compared.
    """

    def __init__(self, boxed: bool = False, digits: Count = 6) -> None:
        self._boxed, self._digits = boxed, digits
        self._verify("1", r"\frac{2}{2}")  # imports its parser, which takes seconds, before the first deadline runs

    def __call__(self, prompt: Any, completion: str, answer: Any) -> float:
        right = results(answer)
        stated = None if self._boxed else final(completion)
        if stated is not None and _plain(stated) in map(_plain, right):
            return 1.0
        given = self._readings(completion, "?" if any("!" in each for each in right) else "!?")
        return float(any(self._equal(one, other) for one in right for other in given))

    def _readings(self, completion: str, ends: str) -> list[str]:
        """`ends`: without the mark of a factorial where the right result has one."""
        if not self._boxed:
            return readings(completion, ends)
        found = boxed(completion)
        return [] if found is None else with_number(found)

    def _equal(self, right: str, given: str) -> bool:
        if _plain(right) == _plain(given):
            return True
        right, given = _without_currency(right), _without_currency(given)
        if not _is_computable(given):
            return False
        compared = ((read(right), read(given)) for read in (number, share))
        if pairs := [(a, b) for a, b in compared if a is not None and b is not None]:
            return any(self._close(a, b) for a, b in pairs)
        return self._verify(right, given)

    def _close(self, a: Fraction, b: Fraction) -> bool:
        """Numbers below the tolerance are compared with each other: 0 is not near 1e-9."""
        tolerance = Fraction(10) ** -self._digits
        scale = max(abs(a), abs(b))
        return abs(a - b) < (tolerance if min(abs(a), abs(b)) >= tolerance else tolerance * scale) or a == b

    def _verify(self, right: str, given: str) -> bool:
        """Its own time limits need the main thread; the reward's process has a deadline anyway."""
        math_verify = _library()
        try:
            parsed = [math_verify.parse(f"\\boxed{{{_latex(text)}}}", parsing_timeout=None) for text in (right, given)]
            if not all(parsed):
                return False
            options = {"float_rounding": self._digits, "allow_set_relation_comp": True, "timeout_seconds": None}
            return bool(math_verify.verify(*parsed, **options))
        except (ArithmeticError, RecursionError, TypeError, ValueError):  # a text that only looks like mathematics
            return False


@cache
def _library() -> Any:
    import math_verify  # type: ignore[import-untyped]

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # warns that its time limits are off
    return math_verify


def _is_computable(text: str) -> bool:
    depth = deepest = 0
    for letter in text:
        depth += (letter in "({[") - (letter in ")}]")
        deepest = max(deepest, depth)
    return len(text) <= MAX_CHARACTERS and deepest <= MAX_DEPTH and not _is_huge(text)


def _is_huge(text: str) -> bool:
    """Whether a number in it has too many digits, or a power of a sum too many terms."""
    text = text.replace("\\left", "").replace("\\right", "")
    inner, outer = 0.0, 1.0
    for bracket, digits, power, more in EXPONENT.findall(text):
        exponent = _exponent(digits, power, more)
        if bracket:
            outer *= max(1.0, exponent)
        else:
            inner += exponent  # of a product of powers
    has_symbols = re.search(r"[A-Za-z]", COMMAND.sub("", text)) is not None
    closed = CLOSED_FACTORIAL.finditer(text)
    factorials = [*FACTORIAL.findall(text), *(_largest(_before(text, each.start())) for each in closed)]
    return (
        max(1.0, inner) * outer > MAX_EXPONENT
        or NESTED_FACTORIAL.search(text) is not None
        or (GROWS_LIKE_FACTORIAL.search(text) is not None and LONG_NUMBER.search(text) is not None)
        or (has_symbols and outer > MAX_OF_SUM)
        or any(len(digits) > 4 or int(digits) > MAX_FACTORIAL for digits in factorials)
    )


def _exponent(digits: str, power: str, more: str) -> float:
    """Of a tower of numbers: `9^{9^{9}}` has the exponent `9^9`."""
    if more or len(digits) > len(str(MAX_EXPONENT)):
        return math.inf
    if not power or int(digits) < 2:
        return int(digits)
    return int(digits) ** int(power) if len(power) <= 2 else math.inf


def _before(text: str, end: int) -> str:
    """What is in the brackets that close there."""
    closing, depth = text[end], 0
    for place in range(end, -1, -1):
        depth += (text[place] == closing) - (text[place] == OPENING[closing])
        if depth == 0:
            return text[place + 1 : end]
    return text[:end]


def _largest(content: str) -> str:
    """The largest number of a sum of numbers; without any for one of symbols, too many digits for all else."""
    if SUM.fullmatch(content):
        return max(re.findall(r"\d+", content), key=lambda digits: (len(digits), digits), default="0")
    return "0" if re.search(r"[A-Za-z]", COMMAND.sub("", content)) else "9" * 9


def _plain(text: str) -> str:
    """Without what changes only the look."""
    plain = DECORATION.sub(lambda mark: "\\frac" if mark[0].endswith("frac") else "", WORDS.sub(r"\1", _latex(text)))
    return _without_currency(plain)


def _latex(text: str) -> str:
    return with_mixed_as_latex(text).replace("°", r"^\circ ")


def _without_currency(text: str) -> str:
    """Without one behind a result, nor the end of a sentence."""
    return text.rstrip(" .€£¢") or text
