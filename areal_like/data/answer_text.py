"""Finds a result that the text of an answer marks: in `\\boxed{}`, in an `<answer>` tag, or after `####`.

In time that grows with the length of the text alone: a model may repeat a mark until its answer is cut off.
"""

import re

TAG, END_OF_TAG = re.compile("<answer>", re.IGNORECASE), re.compile("</answer>", re.IGNORECASE)
BOX = re.compile(r"\\(?:boxed|fbox)")
HASHES = "####"


def boxed(text: str) -> str | None:
    """The content of the last box. A box that is not closed counts as none."""
    end = len(text)
    for start, after in reversed([box.span() for box in BOX.finditer(text)]):
        rest = text[after:end].lstrip()
        if not rest.startswith("{"):
            return rest[:1] or None  # \boxed 5
        depth = 0
        for place, letter in enumerate(rest):
            depth += (letter == "{") - (letter == "}")
            if depth == 0:
                return rest[1:place].strip()
        end = start
    return None


def tagged(text: str) -> str | None:
    """The content of the last `<answer>` tag. One that is not closed counts as none."""
    for part in reversed(END_OF_TAG.split(text)[:-1]):
        if (opening := TAG.search(part)) is not None:
            return part[opening.end() :].strip()
    return None


def after_hashes(text: str) -> str | None:
    """What follows the last `####`."""
    _, mark, answer = text.rpartition(HASHES)
    return answer.strip() if mark else None
