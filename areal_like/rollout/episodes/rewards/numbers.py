"""Numbers in text: the value of a result, and the last number of an answer."""

import re
from fractions import Fraction
from math import prod

NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>(?:(?:^|(?<=[=(:])|(?<=[=(:]\s))[-+\u2212]\s|[-+\u2212])?)[$€£]?"
    r"(?:(?P<units>\d{1,3}(?:,\d{3})+|\d+) (?=\d{1,9}/\d{1,9}(?![\d/]|\.\d)))?"
    r"(?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?P<part>\.\d+)?(?P<power>[eE][-+]?\d{1,3})?"
    r"(?:\s?/\s?(?P<below>\d+(?:\.\d+)?))?(?P<percent>\s?\\?%)?"
)
"""Also a mixed one, if `_is_one`: `2 1/2`."""
MIXED = re.compile(r"(?<![\w.])(\d+)(?: |~|\\[,;: ])(\d{1,9})/(\d{1,9})(?![\w/]|\.\d)")
CHANGING = (
    r"(?:pi|sqrt|times|over|or|and|plus|minus|squared|cubed|to|by|of|mod|divided|factorial|choose|percent|dozen|hundred|"
    r"thousand|million|billion|trillion|halves|thirds|fourths|fifths|tenths|(?:sin|cos|tan|cot|log|ln|exp)[t-z]?|"
    r"[a-d]{2,4}|[u-z]{2,3}|mn|pq|rs)\b"
)
"""Words after a number that make another value of it, and products of letters."""
ADDING = (
    r"\b(?:and|or|plus|minus|times|over)\s+(?:an?\s+)?(?:half|third|quarter|one|two|three|four|fif|six|seven|eigh|nin|ten|"
    r"eleven|twel|twen|thir|fort|hundred|thousand)"
)
"""A further number, in words."""
THINGS = rf"\s++(?!{CHANGING}|.*{ADDING})[A-Za-z]{{2,}}[A-Za-z' /-]*"
COUNTED = re.compile(rf"(?P<number>{NUMBER.pattern}){THINGS}", re.IGNORECASE)
"""A number of things: `18 dollars`."""
OTHER = (
    r"\b(?:not|never|no|nor|neither|either|or|cannot|\w*n['\u2019]t|without|except|than|wrong|incorrect|false|"
    r"minus|negative|plus|times|over|multiplied|divided|raised|factorial|squared|cubed|percent|mod|modulo|pi|sqrt|"
    r"twice|thrice|doubled?|tripled?|hal(?:f|ves|ved)|thirds?|quarter|(?:four|fif|six|seven|eigh|nin|ten)ths?|"
    r"two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|"
    r"(?:dozen|hundred|thousand|million|billion|trillion)(?:s|ths?)?)\b"
)
"""Words of a sentence whose result is perhaps not the number in it."""
WORD = r"(?:a|i|[a-z][a-z'\u2019-]+)"
BEFORE = re.compile(
    rf"(?!.*{OTHER})(?!.*\b(?:(?<!total )of|least|most|under|above|below|up to|between|root|log|ln|sin|cos|tan)\W*$)"
    rf"(?:{WORD}[,:]?\s+)*\$?",
    re.IGNORECASE,
)
AFTER = re.compile(
    rf"\$?[°€£¢]?\$?(?:(?!\s+(?!of (?:the|an?|it|them|all|his|her|its|their)\b){CHANGING})(?!.*(?:{OTHER}|{ADDING}))"
    rf"(?:,?\s+{WORD})*)?",
    re.IGNORECASE,
)
"""What may stand around the only number of a sentence."""
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
SCALING = re.compile(rf"(?:\s*(?:{'|'.join(SCALES)})\b)+", re.IGNORECASE)
SCALED = re.compile(rf"(?P<number>{NUMBER.pattern})(?P<scales>{SCALING.pattern})(?:{THINGS})?", re.IGNORECASE)
"""A number with a word that multiplies it, and perhaps with things: `2 million dollars`."""
WORDS = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}")
SPACES = re.compile(r"~|\\[,;:! ]")
SIGNS = {r"\$": "$", r"\(": "$", r"\)": "$", r"^\circ": "°", r"^{\circ}": "°"}
MAX_RESULT = 2000
"""A longer result is never a number."""


def number(text: str) -> Fraction | None:
    """The value of a text that is one number, with or without a currency, also of `2 million` and `2 million dollars`;
    None for any other text."""
    return _value(text, percent=1)


def share(text: str) -> Fraction | None:
    """As `number`, but `50%` is one half."""
    return _value(text, percent=100)


def last_number(text: str) -> str | None:
    return None if (match := _last(text)) is None else match.group().strip()


def last_scaled_number(text: str) -> str | None:
    """With the words that multiply it: `2 million`."""
    if (match := _last(text)) is None:
        return None
    scaling = SCALING.match(text, match.end())
    return text[match.start() : match.end() if scaling is None else scaling.end()].strip()


def _last(text: str) -> re.Match[str] | None:
    found = [match for match in NUMBER.finditer(text) if match["whole"] or match["part"]]
    if not found or _is_one(found[-1]):
        return found[-1] if found else None
    return NUMBER.match(text, found[-1].start("whole"))


def _is_one(match: re.Match[str]) -> bool:
    """Not so two numbers of which the second is 1 or more: `2 5/3`."""
    return match["units"] is None or int(match["whole"]) < int(match["below"])


def with_mixed_as_latex(text: str) -> str:
    """`2 1/2` as `2\\frac{1}{2}`: without its space it is another number."""
    return MIXED.sub(lambda m: rf"{m[1]}\frac{{{m[2]}}}{{{m[3]}}}" if int(m[2]) < int(m[3]) else m[0], text)


def counted(text: str) -> str | None:
    """The number in a text that is a number of things: `18 dollars`."""
    if len(text) > MAX_RESULT:
        return None
    match = COUNTED.fullmatch(_readable(text))
    return match["number"] if match and _is_one(match) else None


def only_number(text: str) -> str | None:
    """The number of a sentence that has no other and nothing that changes it: `Tom has 12 apples`."""
    readable = "" if len(text) > MAX_RESULT else _readable(text)
    for mark, plain in SIGNS.items():
        readable = readable.replace(mark, plain)
    found = [match for match in NUMBER.finditer(readable) if match["whole"] or match["part"]]
    if len(found) != 1 or not _is_one(found[0]):
        return None
    before, after = readable[: found[0].start()], readable[found[0].end() :]
    return found[0].group() if BEFORE.fullmatch(before) and AFTER.fullmatch(after) else None


def _readable(text: str) -> str:
    """Without LaTeX's signs for words and spaces."""
    return without_marks(SPACES.sub(" ", WORDS.sub(r"\1", text)))


def without_marks(text: str) -> str:
    """Without the marks around a result: `**5**.` -> `5`"""
    bare = text.strip().rstrip(".").strip()
    while len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "*$`\"'":
        bare = bare[1:-1].strip()
    return bare


def _value(text: str, percent: int) -> Fraction | None:
    bare, scale = without_marks(text), 1
    if len(bare) > MAX_RESULT:
        return None
    if scaled := SCALED.fullmatch(_readable(bare.replace("\\$", "$"))):
        bare, scale = scaled["number"], prod(SCALES[word] for word in scaled["scales"].lower().split())
    match = NUMBER.fullmatch(bare)
    if match is None or not (match["whole"] or match["part"]) or not _is_one(match):
        return None
    value = Fraction((match["whole"] or "0").replace(",", "") + (match["part"] or "") + (match["power"] or ""))
    below = Fraction(match["below"] or 1)
    if below == 0:
        return None
    value = Fraction((match["units"] or "0").replace(",", "")) + value / below
    value = value * scale / (percent if match["percent"] else 1)
    return -value if match["sign"].strip() in ("-", "\u2212") else value
