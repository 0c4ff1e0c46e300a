"""How many keys of AReaL and prime-rl have an effect: the table that the verb `keys` prints."""

import json
from pathlib import Path

COUNTS_PATH = Path(__file__).with_name("key_counts.json")
"""Written by `make docs`: source -> state -> [rows, distinct keys]."""


def summary_text() -> str:
    """The counts as a table for the terminal, each as distinct keys of rows."""
    table: dict[str, dict[str, list[int]]] = json.loads(COUNTS_PATH.read_text(encoding="utf-8"))
    states = list(next(iter(table.values())))
    lines = [f"{'keys/rows':<20}" + "".join(f"{state:>11}" for state in (*states, "all"))]
    for source, by_state in table.items():
        rows, keys = _total(by_state)
        cells = [f"{distinct}/{number}" for number, distinct in (*by_state.values(), (rows, keys))]
        lines.append(f"{source:<20}" + "".join(f"{cell:>11}" for cell in cells))
    rows, keys = _total(table["total"])
    shown = sum(table["total"][state][1] for state in states if state in ("live", "ours", "same as"))
    lines.append(f"{shown} of {keys} distinct keys ({rows} rows) have an effect here: docs/keys.md names their tests.")
    return "\n".join(lines)


def _total(by_state: dict[str, list[int]]) -> tuple[int, int]:
    return sum(rows for rows, _ in by_state.values()), sum(keys for _, keys in by_state.values())
