"""Finds the error in the output of an engine that has ended."""

import re
from collections.abc import Sequence
from typing import NamedTuple

MAX_LINES, MAX_CHARACTERS = 4, 2000
TRACEBACK = "Traceback (most recent call last):"
PREFIX = re.compile(
    r"^(?:\(\w[\w .:-]* pid=\d+\)\s?"  # vLLM's process name
    r"|(?:ERROR|CRITICAL|WARNING|INFO|DEBUG) [\d-]+ [\d:.]+ (?:\[[^]]*\]:?\s?)?"  # vLLM's time and file
    r"|\[\d{4}-\d\d-\d\d [^]]*\]\s?)"  # SGLang's time
)
ERROR_LINE = re.compile(r"^(?!(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b)[A-Za-z_][\w.]*(?::|$)")
"""The last line of a traceback; the lines before it are indented."""
ERROR_WORDS = re.compile(r"(?i)\b(?:error|fatal|killed|cannot|failed|no such file|not found|denied|refused)\b")
SECONDARY_ERROR = re.compile(
    r"(?i)root cause above|see (?:the )?(?:stack ?trace|error|log|output)|initialization failed|died|is dead|\bdead\b"
    r"|^EOFError|^SystemExit|^KeyboardInterrupt|CancelledError|exited unexpectedly|child process"
    r"|^RuntimeError: cancelled$"
)
"""An error of one process about another process, whose own error says more."""
PROCESS_DIED = re.compile(r"(?i)\bdied unexpectedly|\bexited (?:unexpectedly|with)|\bis dead\b")
"""Another process died, possibly without any output."""
CHAINED_ERRORS = ("The above exception was the direct cause", "During handling of the above exception")
PORT_IN_USE = re.compile(
    r"(?i)address already in use|errno 98\b|port \d+ is (?:already )?(?:in use|not available|occupied)"
)
PROCESS_KILLED = re.compile(
    r"Failed core proc\(s\): \{[^}]*: -(?:9|15)\b|(?:terminated with|exit code:?|with code) -(?:9|15)\b"
)
"""One of the engine's processes was killed, as vLLM and SGLang say it."""


class MemoryHint(NamedTuple):
    """What an engine prints when memory is missing, as a pattern, and the key that is to be changed, and how."""

    pattern: str
    remedy: str


def with_remedy(failure: str, hints: Sequence[MemoryHint]) -> str:
    """The text of a failure, with the first remedy that it matches."""
    remedy = next((hint.remedy for hint in hints if re.search(hint.pattern, failure)), "")
    return f"{failure.rstrip('.')}; {remedy}" if remedy else failure


def decode_line(content: bytes) -> str:
    """A line as a terminal shows it, without the text that a progress bar overwrote."""
    return content.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]


def find_error(lines: Sequence[str]) -> str:
    """The error's lines: the end of the last traceback that is about its own process; else that another process died;
    else the last traceback; without a traceback the last line that looks like an error, else the last line."""
    texts = [_without_prefix(line) for line in lines]
    errors = _traceback_ends(texts)
    own = [at for at in errors if not SECONDARY_ERROR.search(texts[at])]
    deaths = [at for at, line in enumerate(texts) if PROCESS_DIED.search(line)]
    if own or errors:
        return _error_lines(texts, own[-1] if own else (deaths or errors[-1:])[0])
    suspects = [line for line in texts if ERROR_WORDS.search(line)]
    printed = [line for line in texts if line.strip()]
    return ((suspects or printed or ["it printed nothing"])[-1]).strip()[:MAX_CHARACTERS]


def reports_port_in_use(lines: Sequence[str]) -> bool:
    """Whether the engine could not bind its port."""
    return any(PORT_IN_USE.search(line) for line in lines)


def reports_kill(lines: Sequence[str]) -> bool:
    """Whether one of its own processes was killed."""
    return any(PROCESS_KILLED.search(line) for line in lines)


def _without_prefix(line: str) -> str:
    """Removes the logger's prefixes."""
    shorter = PREFIX.sub("", line.rstrip(), count=1)
    while shorter != line:
        line, shorter = shorter, PREFIX.sub("", shorter, count=1)
    return line


def _traceback_ends(texts: Sequence[str]) -> list[int]:
    """Places of the last lines of tracebacks; of chained errors only the last."""
    ends: list[int] = []
    inside = linked = False
    for at, line in enumerate(texts):
        if TRACEBACK in line:
            inside = True
        elif inside and ERROR_LINE.match(line):
            if linked and ends:
                ends.pop()
            ends.append(at)
            inside = linked = False
        elif line.startswith(CHAINED_ERRORS):
            linked = True
    return ends


def _error_lines(texts: Sequence[str], at: int) -> str:
    """The error's line and its continuation lines."""
    parts = [texts[at].strip()]
    for line in texts[at + 1 : at + MAX_LINES]:
        if not line.startswith(" ") or not line.strip() or "further information" in line:
            break
        parts.append(line.strip())
    return " ".join(parts)[:MAX_CHARACTERS]
