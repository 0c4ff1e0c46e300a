"""What one part of the checks measured: figures, each beside the one that is aimed at. Its file is written anew with
each figure, so that a part that is ended early leaves those it has."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

DONE, FAILED, CANNOT, RUNNING = "done", "failed", "cannot run", "running"


class CannotRun(Exception):
    """Something that a part needs is missing here; the message says what."""


class Aim(NamedTuple):
    """A range of values, in the unit of the figure."""

    least: float | None = None
    most: float | None = None

    def is_met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self.least is None or self.most is None:
            return f"at least {number(self.least)}" if self.most is None else f"at most {number(self.most)}"
        return f"{number(self.least)} to {number(self.most)}"


class Report:
    """`small`: sizes at which only the program is tested: nothing is then aimed at, but limits hold. `words`: overrides
    of the configuration of whole runs and of `rl_step`."""

    def __init__(self, part: str, file: Path, small: bool, words: Sequence[str] = ()) -> None:
        self._file, self.small, self.words = file, small, words
        self.content: dict[str, Any] = {"part": part, "status": RUNNING, "reason": None, "figures": [], "facts": {}}
        self.content |= {"small": True} if small else {}
        self.content |= {"overrides": list(words)} if words else {}
        self._write()

    def figure(self, name: str, value: float | None, unit: str = "", aim: Aim | None = None, note: str = "") -> None:
        """A measured value. An aim that is missed is shown, and nothing more. None: it cannot be measured here."""
        aim = None if self.small else aim
        self._add(name, value, unit, aim, note, is_limit=False)

    def limit(self, name: str, value: float, aim: Aim, unit: str = "", note: str = "") -> None:
        """A value that must be within the aim, whatever the size and the device; else the part fails."""
        self._add(name, value, unit, aim, note, is_limit=True)

    def missing(self, name: str, reason: str) -> None:
        """A figure that cannot be measured on this machine."""
        self._add(name, None, "", None, reason, is_limit=False)

    def fact(self, name: str, value: Any) -> None:
        self.content["facts"][name] = value
        self._write()

    def end(self, status: str, reason: str | None = None) -> None:
        broken = [row["name"] for row in self.content["figures"] if row["limit"] and not row["met"]]
        if status == DONE and broken:
            status, reason = FAILED, f"beyond the limit: {', '.join(broken)}"
        self.content |= {"status": status, "reason": reason}
        self._write()

    def _add(self, name: str, value: float | None, unit: str, aim: Aim | None, note: str, is_limit: bool) -> None:
        is_number = value is not None and math.isfinite(value)
        if value is not None and not is_number:
            note = f"{value} {note}".strip()
        met = None if aim is None else value is not None and is_number and aim.is_met(value)
        row = {
            "name": name,
            "value": value if is_number else None,
            "unit": unit,
            "aim": None if aim is None else str(aim),
        }
        self.content["figures"].append({**row, "met": met, "limit": is_limit, "note": note})
        self._write()

    def _write(self) -> None:
        write_json(self._file, self.content)


def write_json(file: Path, content: Any) -> None:
    """Under a temporary name first: who reads it meanwhile gets a whole file."""
    unfinished = file.with_name(f".{file.name}")
    unfinished.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    unfinished.replace(file)


def size_of(lengths: Sequence[int]) -> str:
    """8 x 2k, 1 x 64"""
    length = f"{lengths[0] // 1024}k" if lengths[0] % 1024 == 0 else str(lengths[0])
    return f"{len(lengths)} x {length}"


def number(value: float | None) -> str:
    """68,000; 29.4; 0.012; 1.2e-05"""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3g}"
