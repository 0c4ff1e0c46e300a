"""The answer of a row: the part of its column that `answer_from` names, or the letter of the right choice."""

import re
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from areal_like.data.answer_text import HASHES, after_hashes, boxed

LETTER = re.compile(r"\W*([A-Za-z])\W*")


class Choices(NamedTuple):
    """The texts of the choices, in the order of their letters."""

    texts: Sequence[str]

    @classmethod
    def of(cls, value: Any, column: str) -> "Choices":
        """Raises ValueError for what is not a list of two to 26 texts."""
        if not isinstance(value, list) or not 2 <= len(value) <= len(ascii_uppercase):
            raise ValueError(f"{column!r} is {value!r:.60}, not a list of 2 to {len(ascii_uppercase)} choices")
        return cls([str(each) for each in value])

    @property
    def lines(self) -> str:
        return "\n".join(f"{letter}. {text}" for letter, text in zip(ascii_uppercase, self.texts, strict=False))

    def letter(self, answer: Any, source: str | None) -> str:
        """The letter of the right choice; raises ValueError if the answer is none of them."""
        index = _INDEX[source](self, answer) if source else self._any(answer)
        if index is None or not 0 <= index < len(self.texts):
            shown = ", ".join(self.texts)
            raise ValueError(f"'answer' is {answer!r:.60}, none of the {len(self.texts)} choices ({shown:.80})")
        return ascii_uppercase[index]

    def _any(self, answer: Any) -> int | None:
        if isinstance(answer, int):
            return answer
        letter, text = self._of_letter(answer), self._of_text(answer)
        if letter is None or letter >= len(self.texts):
            return self._of_number(answer) if text is None else text
        if text not in (None, letter):
            raise ValueError(f"'answer' is {answer!r}, a letter and the text of another choice; set answer_from to one")
        return letter

    def _of_index(self, answer: Any) -> int | None:
        return int(answer) if isinstance(answer, int) or str(answer).strip().isdecimal() else None

    def _of_letter(self, answer: Any) -> int | None:
        match = LETTER.fullmatch(answer) if isinstance(answer, str) else None
        return ascii_uppercase.index(match[1].upper()) if match else None

    def _of_number(self, answer: Any) -> int | None:
        return int(answer) - 1 if isinstance(answer, str) and answer.strip().isdecimal() else None

    def _of_label(self, answer: Any) -> int | None:
        letter = self._of_letter(answer)
        return self._of_number(answer) if letter is None else letter

    def _of_text(self, answer: Any) -> int | None:
        texts = [text.strip() for text in self.texts]
        return texts.index(str(answer).strip()) if str(answer).strip() in texts else None


_INDEX = {"index": Choices._of_index, "letter": Choices._of_label, "text": Choices._of_text}


def answer_in(text: Any, source: str) -> str:
    """The final answer in a solution; raises ValueError if there is none."""
    if isinstance(text, str):
        found = boxed(text) if source == "boxed" else after_hashes(text)
        if found is not None:
            return found
    mark = "\\boxed{}" if source == "boxed" else HASHES
    raise ValueError(f"'answer' is {text!r:.60}, without {mark} (answer_from={source})")
