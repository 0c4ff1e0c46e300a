"""What a program that died has said last, of all that it printed."""

import re
from collections.abc import Sequence

MAX_LINES, MAX_CHARACTERS = 4, 2000
TRACEBACK = "Traceback (most recent call last):"
PREFIX = re.compile(
    r"^(?:\(\w[\w .:-]* pid=\d+\)\s?"  # vLLM names its process
    r"|(?:ERROR|CRITICAL|WARNING|INFO|DEBUG) [\d-]+ [\d:.]+ (?:\[[^]]*\]:?\s?)?"  # and says when and where
    r"|\[\d{4}-\d\d-\d\d [^]]*\]\s?)"  # as SGLang does
)
ERROR_LINE = re.compile(r"^(?!(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b)[A-Za-z_][\w.]*(?::|$)")
"""How a traceback ends: the lines before are indented."""
ERROR_WORDS = re.compile(r"(?i)\b(?:error|fatal|killed|cannot|failed|no such file|not found|denied|refused)\b")
SECONDARY_ERROR = re.compile(
    r"(?i)root cause above|see (?:the )?(?:stack ?trace|error|log|output)|initialization failed|died|is dead|\bdead\b"
    r"|^EOFError|^SystemExit|^KeyboardInterrupt|CancelledError|exited unexpectedly|child process"
    r"|^RuntimeError: cancelled$"
)
"""Said by a process about another one, which has said more."""
PROCESS_DIED = re.compile(r"(?i)\bdied unexpectedly|\bexited (?:unexpectedly|with)|\bis dead\b")
"""Of another one, which may have had no time to say anything."""
CHAINED_ERRORS = ("The above exception was the direct cause", "During handling of the above exception")
PORT_IN_USE = re.compile(
    r"(?i)address already in use|errno 98\b|port \d+ is (?:already )?(?:in use|not available|occupied)"
)


def decode_line(content: bytes) -> str:
    """As a terminal shows it: what a progress bar wrote over is gone."""
    return content.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]


def find_error(lines: Sequence[str]) -> str:
    """The line (or the few) with the error: that of the last traceback which speaks of its own process. Where there is
    none, that another process died, else what is said of that; without any traceback the last line that looks like an
    error, else the last one."""
    said = [_plain(line) for line in lines]
    found = _faults(said)
    own = [at for at in found if not SECONDARY_ERROR.search(said[at])]
    deaths = [at for at, line in enumerate(said) if PROCESS_DIED.search(line)]
    if own or found:
        return _whole(said, own[-1] if own else (deaths or found[-1:])[0])
    others = [line for line in said if ERROR_WORDS.search(line)]
    rest = [line for line in said if line.strip()]
    return ((others or rest or ["it said nothing"])[-1]).strip()[:MAX_CHARACTERS]


def reports_port_in_use(lines: Sequence[str]) -> bool:
    """Whether it could not have its port."""
    return any(PORT_IN_USE.search(line) for line in lines)


def _plain(line: str) -> str:
    """Without what a logger puts in front."""
    shorter = PREFIX.sub("", line.rstrip(), count=1)
    while shorter != line:
        line, shorter = shorter, PREFIX.sub("", shorter, count=1)
    return line


def _faults(said: Sequence[str]) -> list[int]:
    """Where tracebacks end. Of errors that were raised one from another, the last."""
    found: list[int] = []
    inside = linked = False
    for at, line in enumerate(said):
        if TRACEBACK in line:
            inside = True
        elif inside and ERROR_LINE.match(line):
            if linked and found:
                found.pop()
            found.append(at)
            inside = linked = False
        elif line.startswith(CHAINED_ERRORS):
            linked = True
    return found


def _whole(said: Sequence[str], at: int) -> str:
    """The error's line, with the next ones where its text goes on."""
    parts = [said[at].strip()]
    for line in said[at + 1 : at + MAX_LINES]:
        if not line.startswith(" ") or not line.strip() or "further information" in line:
            break
        parts.append(line.strip())
    return " ".join(parts)[:MAX_CHARACTERS]
