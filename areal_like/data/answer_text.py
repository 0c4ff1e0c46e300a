"""Finds a result that the text of an answer marks: in `\\boxed{}`, or after `####`."""

BOXES = ("\\boxed", "\\fbox")
HASHES = "####"


def boxed(text: str) -> str | None:
    """The content of the last box. A box that is not closed counts as none."""
    end = len(text)
    while True:
        start, box = max((text.rfind(box, 0, end), box) for box in BOXES)
        if start < 0:
            return None
        rest = text[start + len(box) : end].lstrip()
        if not rest.startswith("{"):
            return rest[:1] or None  # \boxed 5
        depth = 0
        for place, letter in enumerate(rest):
            depth += (letter == "{") - (letter == "}")
            if depth == 0:
                return rest[1:place].strip()
        end = start


def after_hashes(text: str) -> str | None:
    """What follows the last `####`."""
    _, mark, answer = text.rpartition(HASHES)
    return answer.strip() if mark else None
