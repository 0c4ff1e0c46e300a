"""The built-in reward `choice`: 1 for the letter of the right choice."""

import re
from string import ascii_uppercase as LETTERS
from typing import Any

from areal_like.config.argument_types import Count
from areal_like.rollout.episodes.rewards.stated_result import final, last_line, right_values

ENDS = r"\W*$|\s*[).:]"
DECLARED_ENDS = rf"{ENDS}|[,;]|\s+[-\u2013\u2014]\s|\s+(?:because|since|as|which)\b"
"""What follows a letter that is chosen: more, where the answer is declared."""


class ChoiceReward:
    """The row's `answer` is the letter, its number from 0, or the text of one of the row's `choices`, or a list
    of which any is right. `num_choices`: letters from A on that can be chosen, where the row has no `choices`."""

    def __init__(self, num_choices: Count = 10) -> None:
        if num_choices > len(LETTERS):
            raise ValueError(f"num_choices is {num_choices}; there are {len(LETTERS)} letters")
        self._letters = LETTERS[:num_choices]

    def __call__(self, prompt: Any, completion: str, answer: Any, choices: Any = None) -> float:
        letters = self._letters if not choices else LETTERS[: len(choices)]
        right = {_right(each, choices, letters) for each in right_values(answer)}
        return float(chosen_letter(completion, letters) in right)


def chosen_letter(text: str, letters: str) -> str | None:
    """The letter that an answer chooses: the first of its declared result, else all of its last line, else the last one
    in parentheses, of the declared result if there is one."""
    declared = final(text)
    for part, ends in ((declared, DECLARED_ENDS), (last_line(text), ENDS)):
        if part is not None and (found := _leading(part, letters, ends)) is not None:
            return found
    found_all = re.findall(rf"\(([{letters}])\)", text if declared is None else declared)
    return found_all[-1] if found_all else None


def _leading(part: str, letters: str, ends: str) -> str | None:
    """`B`, `(b)`, `**B**`, `$B$`, `B.`, `B) Paris`, `\\text{B}`, `option B`; not the article in `A dog`."""
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s*", "", part)
    text = re.sub(r"^\W*(?:option|choice|answer)?\W*", "", text, flags=re.IGNORECASE)
    match = re.match(rf"([{letters}{letters.lower()}])(?:[*$}}]|\\\))*+(?:{ends})", text)
    if match is None and ends == DECLARED_ENDS:  # `B (Paris)`; in `a (long) text` it is the article
        match = re.match(rf"([{letters}{letters.lower().replace('a', '')}])(?:[*$}}]|\\\))*+\s+\(", text)
    return match[1].upper() if match else None


def _right(answer: Any, choices: Any, letters: str) -> str:
    """A letter is one also where a choice has it as its text."""
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(letters):
        return letters[answer]
    text = str(answer).strip()
    letter = text.strip("().").upper()
    if len(letter) == 1 and letter in letters:
        return letter
    texts = [str(each).strip() for each in choices or ()]
    if text in texts:
        return letters[texts.index(text)]
    raise ValueError(f"the row's answer {answer!r:.60} is none of the choices {', '.join(letters)}")
