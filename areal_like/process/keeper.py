"""Keeper: the parent of a process that runs foreign code. It ends everything which that process has started, in other
sessions too, whichever of them ends first.

Orphans become the keeper's children, so its descendants are exactly what the process has started. It runs no other
code, so nothing foreign can disturb it.
"""

import os
import resource
import signal
import threading
from collections.abc import Iterable
from typing import NoReturn

from areal_like.process.process_tree import become_subreaper, die_with_parent, kill_descendants, set_process_name

WATCHED = (signal.SIGCHLD, signal.SIGTERM)


def fork_keeper(owner: int, close: Iterable[int] = ()) -> None:
    """Returns in a fork of this process, which becomes its keeper and closes the descriptors in `close`. SIGTERM to the
    keeper, or the end of the process `owner`, its parent, kills the fork with everything that it has started. When the
    fork ends, the keeper ends in the same way. Must be called before any thread is started."""
    assert threading.active_count() == 1, "a process with threads is not forked"
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    die_with_parent(signal.SIGTERM)
    if os.getppid() != owner:
        os._exit(1)
    become_subreaper()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent()
        if os.getppid() != keeper:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        return
    for descriptor in close:
        os.close(descriptor)
    set_process_name("areal keeper")
    status = _wait(child)
    kill_descendants()
    _end_as(-signal.SIGTERM if status is None else os.waitstatus_to_exitcode(status))


def _wait(child: int) -> int | None:
    """Waits for the child, and reaps its orphans meanwhile. None if SIGTERM comes first."""
    while True:
        if signal.sigwait(WATCHED) == signal.SIGTERM:
            return None
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return ended[1]
        except ChildProcessError:
            return None


def _end_as(code: int) -> NoReturn:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left a core file already
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)
