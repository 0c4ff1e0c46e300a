"""Problems of a configuration: key, place, message with remedy; all reported at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from areal_like.config.control_characters import escape_controls
from areal_like.config.redact import scrub


class Stage(StrEnum):
    """How far a run gets with a problem."""

    INVALID = "invalid"
    """The configuration cannot be loaded."""
    CANNOT_START = "cannot start"
    """It can be planned, and is started on no machine."""
    MISSING = "missing"
    """This machine or its files lack something; a start is refused here."""
    NO_EFFECT = "no effect"
    """A value that this run does not read; it starts."""
    WARNING = "warning"
    """It starts; the user should know."""


@dataclass(frozen=True)
class Problem:
    """`key` is a dotted key (or a file), `where` the file and line, group file or override that set it."""

    key: str
    message: str
    where: str = ""
    follows: tuple["Problem", ...] = ()
    """Problems that disappear with this one."""
    also: tuple[str, ...] = ()
    """Other keys involved."""
    stage: Stage = Stage.INVALID
    """Set by `run_checks` to that of the check."""
    short: str = ""
    """The message where there is no room for the whole one; empty: the same."""

    def __post_init__(self) -> None:
        if not self.key.strip():
            object.__setattr__(self, "key", "(a key without a name)")

    def text(self) -> str:
        place = f" [{self.where}]" if self.where and self.where != self.key else ""
        lines = [scrub(f"{escape_controls(self.key, keep='')}{place}: {self.message}")]
        if self.follows:
            names = ", ".join(sorted({problem.key for problem in self.follows}))
            lines.append(f"    follows from it: {names}")
        return escape_controls("\n".join(lines))


class ConfigError(Exception):
    """An invalid configuration, with all its problems."""

    def __init__(self, problems: Iterable[Problem], title: str = "") -> None:
        self.problems = tuple(sort_problems(problems))
        self.title = title
        super().__init__(self.text())

    def text(self) -> str:
        """Several problems end with their number."""
        return self.refusal_text() if len(self.problems) > 1 else "\n".join(self._lines())

    def refusal_text(self) -> str:
        """The text of a refused start, which always ends with the number."""
        return "\n".join([*self._lines(), started_nothing_text(len(self.problems))])

    def _lines(self) -> list[str]:
        return [*([self.title] if self.title else []), *(problem.text() for problem in self.problems)]


def plural(number: int, noun: str, nouns: str = "") -> str:
    """1 row, 2 rows"""
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or noun + 's'}"


def started_nothing_text(problems: int) -> str:
    """The last line of a refusal."""
    return f"{plural(problems, 'problem')}; nothing was started."


def sort_problems(problems: Iterable[Problem]) -> list[Problem]:
    """By key, then place, without duplicates."""
    unique = {(p.key, p.where, p.message): p for p in problems}
    return [unique[key] for key in sorted(unique)]


def fold_consequences(problems: Iterable[Problem]) -> list[Problem]:
    """Reports a missing required key as a consequence of the misspelt key whose suggestion names it."""
    kept: list[Problem] = []
    missing: list[Problem] = []
    for problem in problems:
        (missing if problem.message.startswith(MISSING_VALUE) else kept).append(problem)
    for consequence in missing:
        for index, cause in enumerate(kept):
            if f"did you mean {consequence.key}" in cause.message:
                kept[index] = Problem(
                    cause.key, cause.message, cause.where, (*cause.follows, consequence, *consequence.follows)
                )
                break
        else:
            kept.append(consequence)
    return kept


MISSING_VALUE = "a value is required"
