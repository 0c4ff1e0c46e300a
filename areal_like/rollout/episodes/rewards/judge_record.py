"""What a judge has answered, and what its calls have cost: a file that all processes of a run share."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TypeVar

WAIT_S = 60.0
"""How long a process waits for another one that writes."""
TABLES = """
CREATE TABLE IF NOT EXISTS scores (request TEXT PRIMARY KEY, score REAL NOT NULL);
CREATE TABLE IF NOT EXISTS spent (row INTEGER PRIMARY KEY, calls INTEGER NOT NULL, tokens INTEGER NOT NULL);
INSERT OR IGNORE INTO spent VALUES (0, 0, 0);
"""
"""Scores are on the judge's scale. Files of earlier versions also have `answers`, from 0 to 1 by a scale that may have
changed."""


T = TypeVar("T")


class JudgeRecord:
    """A cache of scores by request, and a budget of calls and tokens. A resumed run continues with both.

    A thread of its own uses the file: it may wait for other processes."""

    def __init__(self, path: Path | None, max_calls: int | None, max_tokens: int | None) -> None:
        """`path` None: in memory. Opened on use: neither thread nor connection may be copied into another process."""
        self._path, self._max_calls, self._max_tokens = path, max_calls, max_tokens

    async def known(self, request: str) -> float | None:
        return await self._in_thread(lambda: self._known(request))

    async def spend_call(self) -> None:
        """Counts a call. Raises RuntimeError if the budget does not allow it."""
        await self._in_thread(self._spend_call)

    async def add_tokens(self, tokens: int) -> None:
        await self._in_thread(lambda: self._change("UPDATE spent SET tokens = tokens + ?", tokens))

    async def add(self, request: str, score: float) -> None:
        await self._in_thread(lambda: self._change("INSERT OR REPLACE INTO scores VALUES (?, ?)", request, score))

    async def close(self) -> None:
        if "_file" in vars(self):
            await self._in_thread(self._file.close)
            self._thread.shutdown()

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "judge-record")

    @cached_property
    def _file(self) -> sqlite3.Connection:
        path = ":memory:" if self._path is None else self._path
        file = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
        file.executescript(TABLES)
        return file

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _known(self, request: str) -> float | None:
        row = self._file.execute("SELECT score FROM scores WHERE request = ?", (request,)).fetchone()
        return None if row is None else float(row[0])

    def _spend_call(self) -> None:
        limits = {"calls": self._max_calls, "tokens": self._max_tokens}
        done = self._file.execute(
            "UPDATE spent SET calls = calls + 1 WHERE calls < coalesce(:calls, calls + 1) "
            "AND tokens < coalesce(:tokens, tokens + 1)",
            limits,
        )
        if done.rowcount == 0:
            calls, tokens = self._spent()
            allowed = ", ".join(f"{limit} {name} (max_{name})" for name, limit in limits.items() if limit is not None)
            raise RuntimeError(f"the judge's budget of {allowed} is spent: {calls} calls, {tokens} tokens")

    def _change(self, statement: str, *values: str | float) -> None:
        self._file.execute(statement, values)

    def _spent(self) -> tuple[int, int]:
        calls, tokens = self._file.execute("SELECT calls, tokens FROM spent").fetchone()
        return int(calls), int(tokens)
