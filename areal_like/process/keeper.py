"""Keeper: the parent of a process that runs foreign code, such as an engine, a reward, an agent or an environment. It
ends everything which that process has started, in other sessions too, whichever of them ends first.

Orphans become the keeper's children, so its descendants are exactly what the process has started. It runs no other
code, so nothing foreign can disturb it.

`python -m areal_like.process.keeper OWNER GRACE_S COMMAND...` keeps a command.
"""

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

from areal_like.process.identity import TOKEN_DESCRIPTOR
from areal_like.process.process_tree import become_subreaper, die_with_parent, kill_descendants, set_process_name

WATCHED = (signal.SIGCHLD, signal.SIGTERM)
CHECK_INTERVAL_S = 0.1


class KeeperWatch(Protocol):
    """Watches what a keeper keeps. It runs in the keeper, and may start threads but no processes."""

    def start(self) -> None:
        """Once, when the kept process runs."""
        ...

    def is_exceeded(self) -> bool:
        """Every CHECK_INTERVAL_S: whether the kept process must end."""
        ...

    def end(self, code: int) -> None:
        """Once, when nothing is left; with the code of the kept process, negative for a signal."""
        ...


def kept_command(command: Sequence[str], grace_s: float) -> list[str]:
    """The command under a keeper of this process."""
    return [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(grace_s), *command]


def fork_keeper(owner: int, grace_s: float = 0.0, close: Iterable[int] = (), watch: KeeperWatch | None = None) -> None:
    """Returns in a fork of this process, which becomes its keeper and closes the descriptors in `close`. SIGTERM to the
    keeper ends the fork, which gets SIGTERM and `grace_s` before, with everything that it has started; so does the end
    of the keeper's parent, the process `owner`, and `watch`, at once. When the fork ends, the keeper ends in the same
    way. Must be called before any thread is started."""
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
    if watch is not None:
        watch.start()
    status = _wait_until_ended(child, watch)
    if status is None and grace_s and os.getppid() == owner:
        os.kill(child, signal.SIGTERM)
        status = _wait_for_end(child, time.monotonic() + grace_s)
    if left := kill_descendants():
        print(f"processes that could not be killed: {left}", file=sys.stderr, flush=True)
    code = -signal.SIGTERM if status is None else os.waitstatus_to_exitcode(status)
    if watch is not None:
        watch.end(code)
    end_as(code)


def _wait_until_ended(child: int, watch: KeeperWatch | None) -> int | None:
    """None if SIGTERM comes first, or `watch` ends it."""
    if watch is None:
        while signal.sigwait(WATCHED) != signal.SIGTERM:
            if (status := _reap(child)) is not None:
                return status
        return None
    next_check = time.monotonic()
    while True:
        if (now := time.monotonic()) >= next_check:  # also while orphans end all the time
            if watch.is_exceeded():
                return None
            next_check = now + CHECK_INTERVAL_S
        seen = signal.sigtimedwait(WATCHED, max(0.0, next_check - now))
        if seen is not None and seen.si_signo == signal.SIGTERM:
            return None
        if seen is not None and (status := _reap(child)) is not None:
            return status


def _wait_for_end(child: int, until: float) -> int | None:
    """None if it takes longer."""
    while (status := _reap(child)) is None and (left_s := until - time.monotonic()) > 0:
        signal.sigtimedwait([signal.SIGCHLD], left_s)
    return status


def _reap(child: int) -> int | None:
    """Reaps all that have ended, orphans too. The status of the child, if it is among them."""
    status = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = ended[1]
    except ChildProcessError:
        pass
    return status


def end_as(code: int) -> NoReturn:
    """Ends this process as another has ended, by the same exit code or signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left a core file already
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def main() -> None:
    owner, grace_s, *command = sys.argv[1:]
    descriptor = os.environ.get(TOKEN_DESCRIPTOR)
    fork_keeper(int(owner), float(grace_s), close=() if descriptor is None else (int(descriptor),))
    os.setpgid(0, 0)  # a signal to its own group is not for the keeper
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # which Python has changed
    try:
        os.execvp(command[0], command)
    except OSError as fault:
        sys.exit(f"{command[0]} cannot be started: {fault.strerror}")


if __name__ == "__main__":
    main()
