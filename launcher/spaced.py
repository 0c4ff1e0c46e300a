"""A key and its value written as two words, where the command line wants `key=value`."""

import re

from areal_like.config.problems import Problem

DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+")


def key_without_equals(word: str, waiting: list[str]) -> Problem | None:
    """What to write instead of a bare word that is a key; takes its value out of the words that wait."""
    key = word.removesuffix("=")
    if not _is_key(key, bool(waiting)) or (key != word and not _is_value(waiting)):
        return None
    value = "..."
    if key == word and waiting and waiting[0].startswith("="):
        value = waiting.pop(0)[1:] or (waiting.pop(0) if _is_value(waiting) else value)
    elif _is_value(waiting):
        value = waiting.pop(0)
    return Problem(key, f"is a key: write {key}={value}, without spaces", "command line")


def _is_value(waiting: list[str]) -> bool:
    return bool(waiting) and "=" not in waiting[0] and not waiting[0].startswith(("--", "+", "~"))


def _is_key(word: str, waits: bool) -> bool:
    from launcher.arguments import COMMAND_SYNONYMS, COMMANDS, is_config_name

    if word in COMMANDS or (word in COMMAND_SYNONYMS and not waits) or is_config_name(word):
        return False
    if DOTTED.fullmatch(word) and not word.endswith((".json", ".py")):
        return True
    from areal_like.config.experiment import EXPERIMENTS
    from areal_like.config.names import ALIASES
    from areal_like.config.schema import Schema

    return word in ALIASES or any(word in Schema.of(cls).keys for cls in EXPERIMENTS.values())
