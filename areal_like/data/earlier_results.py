"""How difficult the training rows were in an earlier run, from the columns `metadata` and `rollouts` of the data."""

import json
import math
from typing import Any

from areal_like.config.sections.curriculum import RESULT_COLUMNS
from areal_like.data.checked_rows import CheckedRows
from areal_like.data.user_code import config_error

KEY = "curriculum.from_scratch"
LETTERS = {"easy": "e", "normal": "n", "hard": "h"}


def earlier_difficulty(config: Any, rows: CheckedRows) -> str:
    """A letter for each row; empty if the curriculum starts from scratch. All rows are read."""
    keys = config.curriculum
    if keys.from_scratch or keys.type != "difficulty_pool":
        return ""
    return "".join(_letter(row, rows.place(number), keys) for number, row in enumerate(rows.rows))


def _letter(row: dict[str, Any], place: str, keys: Any) -> str:
    """By `difficulty` of the metadata, else by its `reward`, else by the rewards of the rollouts; else normal."""
    if missing := [name for name in RESULT_COLUMNS if name not in row]:
        message = f"is false, but {place} has no column {missing[0]}; set it to true, or save the results there"
        raise config_error(KEY, message)
    metadata, rollouts = (_parsed(row[name], name, place) for name in RESULT_COLUMNS)
    if not isinstance(metadata, dict) or not isinstance(rollouts, list):
        raise config_error(KEY, f"is false, and {place} needs metadata as an object and rollouts as a list")
    if (label := metadata.get("difficulty")) is not None:
        if not isinstance(label, str) or label not in LETTERS:
            raise config_error(KEY, f"{place} has the difficulty {label!r:.40}; it must be one of {', '.join(LETTERS)}")
        return LETTERS[label]
    rewards = [each.get("reward") for each in rollouts if isinstance(each, dict)]
    values = [metadata["reward"]] if "reward" in metadata else [each for each in rewards if each is not None]
    if not all(isinstance(each, int | float) and math.isfinite(each) for each in values):
        raise config_error(KEY, f"{place} has a reward that is not a number")
    if not values:
        return "n"
    mean = math.fsum(values) / len(values)
    return "e" if mean > keys.easy_border else "h" if mean < keys.hard_border else "n"


def _parsed(value: Any, name: str, place: str) -> Any:
    """Values are JSON, as text or read already."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as fault:
        raise config_error(KEY, f"{place}: {name} is not JSON: {fault}", fault) from fault
