"""An agent that is a program: under a keeper, with the row on its standard input."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from areal_like.data.exact_json import dump_json
from areal_like.process.identity import shown_variables
from areal_like.process.keeper import kept_command
from areal_like.process.process_tree import KILL_TIMEOUT_S, process_info
from areal_like.process.proxy_variables import around_proxy
from areal_like.process.stopped_tree import STOPPED, waiting_cpu_s
from areal_like.rollout.episodes.agents.base import AgentError
from areal_like.rollout.episodes.gateway.gateway import Endpoint

TAIL_BYTES = 16384
"""What is kept of an output."""
SHOWN_LINES = 8
GB = 1e9
CHECK_S, CHECKS = 5.0, 3
"""A program that is found stopped (SIGSTOP) so often in a row is ended: it would be waited for until its limit."""
OTHER_KEY = "ANTHROPIC_AUTH_TOKEN"
"""A key that Anthropic's clients would send beside that of the episode."""

log = logging.getLogger(__name__)


class CommandAgent:
    """`command` has the paths of its files already. Its keeper kills what the program has started, when it ends or is
    ended, and ends as it did."""

    def __init__(self, command: Sequence[str], cwd: Path, max_memory_gb: float | None) -> None:
        self._command, self._cwd = list(command), cwd
        self._limit_memory: Callable[[], None] | None = None
        if max_memory_gb is not None:
            limit = int(max_memory_gb * GB)
            self._limit_memory = partial(resource.setrlimit, resource.RLIMIT_DATA, (limit, limit))

    async def run(self, row: dict[str, Any], endpoint: Endpoint) -> str:
        """The last line that it prints."""
        try:
            process = await asyncio.create_subprocess_exec(
                *kept_command(self._command, 0.0),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=self._cwd,
                env=environment(endpoint),
                start_new_session=True,
                preexec_fn=self._limit_memory,
            )
        except OSError as fault:
            raise AgentError(f"agent.command: {self._command[0]} cannot be started: {fault}") from fault
        was_stopped = asyncio.Event()
        watch = asyncio.create_task(_end_if_stopped(process, was_stopped))
        try:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            out, err, _ = await asyncio.gather(
                _tail(process.stdout), _tail(process.stderr), _write(process.stdin, dump_json(row) + b"\n")
            )
            code = await process.wait()
        finally:
            watch.cancel()
            await _end(process)
        if was_stopped.is_set():
            raise AgentError("agent.command: the program was stopped (SIGSTOP) and did not go on, so it was ended")
        if code:
            how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            raise AgentError(f"agent.command: the program ended with {how}: {_last_lines(err) or 'it printed nothing'}")
        lines = [line for line in out.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def environment(endpoint: Endpoint) -> dict[str, str]:
    """That of the worker, in which `python` is the one of the run."""
    kept = {name: value for name, value in shown_variables().items() if name != OTHER_KEY}
    path = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath)))
    return {
        **kept,
        **{"PATH": path, **around_proxy(kept)},
        **{"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.key},
        **{"ANTHROPIC_BASE_URL": endpoint.url, "ANTHROPIC_API_KEY": endpoint.key},
    }


async def _write(stdin: asyncio.StreamWriter, content: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # a program need not read it
        stdin.write(content)
        await stdin.drain()
        stdin.close()


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while part := await stream.read(TAIL_BYTES):
        kept = (kept + part)[-TAIL_BYTES:]
    return kept


async def _end_if_stopped(process: asyncio.subprocess.Process, was_stopped: asyncio.Event) -> None:
    found, used_s = 0, None
    while found < CHECKS:
        await asyncio.sleep(CHECK_S)
        before_s, used_s = used_s, _waiting_cpu_s(process.pid)
        found = 0 if used_s is None else found + 1 if used_s == before_s else 1
    log.warning("agent.command: the program under process %d is stopped, and is ended", process.pid)
    was_stopped.set()
    await _end(process)


def _waiting_cpu_s(keeper: int) -> float | None:
    """None unless the program is stopped, or its keeper."""
    info = process_info(keeper)
    return 0.0 if info is not None and info.state == STOPPED else waiting_cpu_s(keeper)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        for number in (signal.SIGTERM, signal.SIGCONT):  # the program may have stopped its keeper
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
    try:
        await asyncio.wait_for(process.wait(), KILL_TIMEOUT_S)
    except TimeoutError:
        log.warning("agent.command: process %d does not end %g s after its kill", process.pid, KILL_TIMEOUT_S)


def _last_lines(output: bytes) -> str:
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join(lines[-SHOWN_LINES:])
