"""Which answers a scorer that evaluates them may read: those that state a value, and run no code of their own.

The sandbox holds what code does to the machine. But such a scorer and its verdict are in the same process, so that code
in an answer could give itself any score.
"""

import ast
import builtins
import re
from unicodedata import normalize

UNREADABLE = "?"
"""What the scorer reads instead: it scores it as any other answer that is no value."""
COMPUTES = {"abs", "complex", "divmod", "float", "int", "max", "min", "pow", "round", "sum", "True", "False", "None"}
NAMES = frozenset(dir(builtins)) - COMPUTES
NAME = re.compile(r"[^\W\d]\w*")
CODE = re.compile(r"__|[\w)\]}]\s+\.\s*[^\W\d]|[^\W\d]\w*\.\s*[^\W\d]|[)\]}]\.\s*[^\W\d]|\blambda\b")
"""Attributes, and functions without a name."""


def readable(answer: str) -> str:
    return answer if states_a_value(answer) else UNREADABLE


def states_a_value(answer: str) -> bool:
    """No names of Python's own but those that compute, no attributes, and texts only where nothing is called. Python
    reads names in their normal form."""
    text = normalize("NFKC", answer)
    if CODE.search(text) or not NAMES.isdisjoint(NAME.findall(text)):
        return False
    return not any(mark in text for mark in "'\"`") or all("(" not in each for each in _constants(text))


def _constants(text: str) -> list[str]:
    """Texts and numbers in a list, tuple or other literal; for what is none, a call."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ["()"]
    return [repr(each.value) for each in ast.walk(tree) if isinstance(each, ast.Constant)]
