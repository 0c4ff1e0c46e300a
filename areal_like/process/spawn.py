"""Starts child processes."""

import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from areal_like.process.process_tree import die_with_parent

Stream = int | IO[Any] | None


def spawn(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: Path | None = None,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    pass_fds: Sequence[int] = (),
    dies_with_parent: bool = False,
    cores: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """In a new session. `dies_with_parent`: the child gets SIGKILL when the calling thread ends. Such a child can be
    limited to `cores`, as far as this process may use them; empty: no limit."""
    assert dies_with_parent or not cores
    setup = _child_setup(os.getpid(), cores) if dies_with_parent else None
    return subprocess.Popen(
        command,
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=setup,
    )


def _child_setup(parent: int, cores: Collection[int]) -> Callable[[], None]:
    """Runs between fork and exec, where other threads may hold locks: system calls only, looked up before."""
    allowed = set(cores) & os.sched_getaffinity(0)

    def setup() -> None:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        if allowed:
            os.sched_setaffinity(0, allowed)

    return setup
