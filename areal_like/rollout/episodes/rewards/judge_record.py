"""What a judge has answered, and what its calls have cost: a file that all processes of a run share."""

import sqlite3
from pathlib import Path

WAIT_S = 60.0
"""How long a process waits for another one that writes."""
TABLES = """
CREATE TABLE IF NOT EXISTS answers (request TEXT PRIMARY KEY, value REAL NOT NULL);
CREATE TABLE IF NOT EXISTS spent (row INTEGER PRIMARY KEY, calls INTEGER NOT NULL, tokens INTEGER NOT NULL);
INSERT OR IGNORE INTO spent VALUES (0, 0, 0);
"""


class JudgeRecord:
    """A cache of values by request, and a budget of calls and tokens. A resumed run continues with both."""

    def __init__(self, path: Path | None, max_calls: int | None, max_tokens: int | None) -> None:
        """`path` None: in memory."""
        self._max_calls, self._max_tokens = max_calls, max_tokens
        self._file = sqlite3.connect(":memory:" if path is None else path, timeout=WAIT_S, isolation_level=None)
        self._file.executescript(TABLES)

    def known(self, request: str) -> float | None:
        row = self._file.execute("SELECT value FROM answers WHERE request = ?", (request,)).fetchone()
        return None if row is None else float(row[0])

    def spend_call(self) -> None:
        """Counts a call. Raises RuntimeError if the budget does not allow it."""
        limits = {"calls": self._max_calls, "tokens": self._max_tokens}
        done = self._file.execute(
            "UPDATE spent SET calls = calls + 1 WHERE calls < coalesce(:calls, calls + 1) "
            "AND tokens < coalesce(:tokens, tokens + 1)",
            limits,
        )
        if done.rowcount == 0:
            calls, tokens = self.spent()
            allowed = ", ".join(f"{limit} {name} (max_{name})" for name, limit in limits.items() if limit is not None)
            raise RuntimeError(f"the judge's budget of {allowed} is spent: {calls} calls, {tokens} tokens")

    def add_tokens(self, tokens: int) -> None:
        self._file.execute("UPDATE spent SET tokens = tokens + ?", (tokens,))

    def add(self, request: str, value: float) -> None:
        self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (request, value))

    def spent(self) -> tuple[int, int]:
        """Calls and tokens."""
        calls, tokens = self._file.execute("SELECT calls, tokens FROM spent").fetchone()
        return int(calls), int(tokens)
