"""The report of a workflow that blocks the event loop of its worker: where it does, in the log and to the launcher."""

import logging
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from areal_like.data.user_code import is_user_file
from areal_like.process.entrypoint import leave_failure_note, stacks_path
from areal_like.process.exit_codes import FAILED
from areal_like.process.identity import Identity
from areal_like.process.run import Run

STACKS_TIMEOUT_S, POLL_S = 5.0, 0.05
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', flags=re.M)

log = logging.getLogger(__name__)


def block_report(run: Run, me: Identity) -> Callable[[int], None]:
    workflow = run.config.workflow.name or "single_turn"
    limit_s = run.config.workflow.block_timeout_s

    def report(pid: int) -> None:
        stack = main_stack(stacks_of(pid, stacks_path(run, me)))
        what = f"{workflow} blocked the event loop of {me.name} for {limit_s:g} s{place_in(stack)}"
        log.error("%s:\n%s", what, stack)
        remedy = "await what takes long, or call it in asyncio.to_thread"
        message = f"workflow.block_timeout_s: {what}; {remedy}"
        leave_failure_note(run.directory, me, "blocked", message, FAILED, is_printed=True)

    return report


def stacks_of(pid: int, path: Path) -> str:
    """The stacks of all threads, which a process writes when asked, even while it holds the interpreter's lock."""
    before = path.stat().st_size
    os.kill(pid, signal.SIGUSR2)
    until, seen = time.monotonic() + STACKS_TIMEOUT_S, before
    while time.monotonic() < until:
        time.sleep(POLL_S)
        if (size := path.stat().st_size) == seen > before:
            break
        seen = size
    with path.open("rb") as file:
        file.seek(before)
        return file.read().decode("utf-8", "replace")


def main_stack(stacks: str) -> str:
    """The thread that got the signal, which is the one of the event loop."""
    return stacks.partition("Current thread")[2].partition("\n")[2].partition("\n\n")[0].rstrip()


def place_in(stack: str) -> str:
    """The innermost frame in the user's code, else the innermost one."""
    frames = FRAME.findall(stack)
    mine = [frame for frame in frames if is_user_file(frame[0])] or frames
    if not mine:
        return ""
    file, line, function = mine[0]
    return f", at {file} line {line}, in {function}"
