"""Reads sizes such as `d4t2` character by character, and says where and why it cannot.

    hybrid  := ["("] "attn:" dims "|" "ffn:" dims [")"]             letters d t p c, then d t p e
    dims    := (letter number)+     each letter once, a number from 1 on; spaces between tokens mean nothing

The d of ffn may be left out: it is then what makes both parts the same number of devices.
"""

import re
from dataclasses import replace
from typing import NoReturn

from areal_like.config.allocation.base import DIMENSIONS, BackendSpec, ParallelDims

MAX_DIGITS = 6
MAX_QUOTE_LENGTH = 70


class AllocationSyntaxError(ValueError):
    """A string that is none of the forms; `position` counts characters from 1."""

    def __init__(self, text: str, position: int, complaint: str) -> None:
        self.text, self.position, self.complaint = text, position, complaint
        quote = text if len(text) <= MAX_QUOTE_LENGTH else text[: MAX_QUOTE_LENGTH - 3] + "..."
        where = f"position {position}" + (", its end" if position > len(text) else "")
        super().__init__(f"{quote!r} cannot be read ({where}): {complaint}")


class Scanner:
    """A place in a text that only moves on."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        """The next character that is not a space, or "" at the end."""
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def take(self, wanted: str) -> bool:
        found = self.peek() == wanted
        self.at += found
        return found

    def match(self, pattern: str) -> str:
        self.peek()
        found = re.compile(pattern).match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found.group() if found else ""

    def word(self) -> str:
        return self.match(r"[A-Za-z][A-Za-z0-9_-]*")

    def fail(self, complaint: str, at: int | None = None) -> NoReturn:
        self.peek()
        raise AllocationSyntaxError(self.text, (self.at if at is None else at) + 1, complaint)

    def sizes(self, letters: str, owner: str) -> ParallelDims:
        """dims; `owner` is who takes these letters, for the error message."""
        sizes: dict[str, int] = {}
        while (letter := self.peek()).isalpha():
            if letter not in letters:
                self.fail(_unknown_letter(letter, letters, owner))
            if letter in sizes:
                self.fail(f"'{letter}' stands here a second time; give each dimension once")
            self.at += 1
            sizes[letter] = self._number(letter)
        if not sizes:
            self.fail(f"expected sizes, such as d4 ({_letters(letters, owner)})")
        return ParallelDims(**{DIMENSIONS[letter]: size for letter, size in sizes.items()})

    def _number(self, letter: str) -> int:
        self.peek()
        start = self.at
        digits = self.match(r"[0-9]+")
        if not digits:
            self.fail(f"expected a number after '{letter}', such as {letter}2")
        if len(digits) > MAX_DIGITS:
            self.fail(f"a number of {len(digits)} digits is more than any cluster has", at=start)
        if int(digits) == 0:
            self.fail(f"{letter}{digits} is not possible: a size is at least 1 (leave '{letter}' out for 1)", at=start)
        if digits[0] == "0":
            self.fail(f"write {letter}{int(digits)}, without the leading 0", at=start)
        return int(digits)

    def at_hybrid(self) -> bool:
        return self.peek() == "(" or bool(re.compile(r"attn\s*:").match(self.text, self.at))

    def hybrid(self, backend: str | None) -> BackendSpec:
        opened = self.take("(")
        self._label("attn")
        attention = self.sizes("dtpc", "the attn part")
        if not self.take("|"):
            self.fail("expected a further size, or '|' and the ffn part: attn:d4t2|ffn:d2t2e2")
        self._label("ffn")
        start = self.at
        experts = self.sizes("dtpe", "the ffn part")
        if "d" not in self.text[start : self.at]:
            rest = experts.pipeline * experts.tensor * experts.expert
            experts = replace(experts, data=max(1, attention.world_size // rest))
        if opened and not self.take(")"):
            self.fail("expected a further size, or ')'")
        return BackendSpec(backend, attention, experts)

    def _label(self, label: str) -> None:
        if not self.match(rf"{label}\s*:"):
            self.fail(f"expected '{label}:' (a hybrid reads attn:d4t2|ffn:d2t2e2)")


def _letters(letters: str, owner: str) -> str:
    return f"{owner} takes " + ", ".join(f"{letter} {DIMENSIONS[letter]}" for letter in letters)


def _unknown_letter(letter: str, letters: str, owner: str) -> str:
    allowed = _letters(letters, owner)
    if letter.lower() in letters:
        return f"write '{letter.lower()}' in lower case ({allowed})"
    if letter in DIMENSIONS:
        return f"'{letter}' ({DIMENSIONS[letter]}) is not for {owner}: {allowed}"
    old = " ('m', model, is t now)" if letter == "m" else ""
    return f"there is no dimension '{letter}'{old}: {allowed}"
