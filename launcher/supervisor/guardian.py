"""Root process of a run: forks the launcher, forwards signals, kills what is left on exit.

Guardian and launcher each hold one end of a pipe that closes when the other ends, however it ends. The survivor kills
every process of the run: both are subreapers, so all orphans become their children. The guardian also clears the shared
memory of the run; the launcher does that when the guardian is gone. Each watches whether the other is stopped.
"""

import math
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from areal_like.process.abandoned_memory import remove_abandoned_memory, remove_run_memory
from areal_like.process.errors import Failure
from areal_like.process.exit_codes import FAILED, INTERRUPTED
from areal_like.process.process_tree import (
    become_subreaper,
    descendants_of,
    has_handler,
    kill,
    kill_descendants,
    process_info,
    set_process_name,
    threads_of,
)
from areal_like.process.run_memory import create_run_memory
from areal_like.process.stop_signals import HANDLED_SIGNALS, STOP_SIGNALS, stop_command
from areal_like.process.tree_usage import thread_work
from launcher.agent.base import STOPPED
from launcher.supervisor.hang_log import HangLog
from launcher.supervisor.launcher_pulse import LAUNCHER_PULSE, LauncherWatch
from launcher.terminal import write_line

CHECK_S = 1.0
STACKS_S = 1.0
"""What a launcher that hangs may take to write its stacks."""
DIES_S = 10.0
"""What a process may take to die once it is killed."""
SHOW_CURSOR = "\x1b[?25h"
WRITES = {"x86_64": ("1", "20"), "aarch64": ("64", "66")}
"""Numbers of the calls write and writev."""
OUTPUTS = (1, 2)


def run_guarded(launch: Callable[[], int], memory: Path) -> int:
    """Runs `launch` in a forked process; returns its exit code when all its processes have ended and `memory`, the
    shared memory folder that is created here, is removed. Must be called before any thread is started."""
    assert threading.active_count() == 1, "a process with threads is not forked"
    try:
        create_run_memory(memory)
    except Failure as failure:
        write_line(str(failure), sys.stderr)
        return FAILED
    become_subreaper()
    launcher_pipe, launcher_end = os.pipe()
    guardian_pipe, guardian_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # with which all others write their stacks; also the launcher, later
    launcher = os.fork()
    if launcher == 0:
        os.close(launcher_pipe)
        os.close(guardian_end)
        LAUNCHER_PULSE.open(launcher_end)
        _run_launcher(launch, guardian_pipe, memory)
    set_process_name("areal guardian")
    os.close(launcher_end)
    os.close(guardian_pipe)
    _pass_signals_on(launcher)
    _watch_launcher(launcher_pipe, launcher)
    os.waitid(os.P_PID, launcher, os.WEXITED | os.WNOWAIT)
    for number in HANDLED_SIGNALS:  # once it is reaped, another process may get its number
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(launcher, 0)
    code = os.waitstatus_to_exitcode(status)
    left = kill_descendants()
    try:
        remove_run_memory(memory)
    except OSError as fault:
        write_line(f"{memory}: cannot be removed: {fault}", sys.stderr)
    remove_abandoned_memory()
    if left:
        write_line(f"these processes could not be ended: {', '.join(map(str, left))}", sys.stderr)
    if code >= 0:
        return code
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
    write_line(f"{cursor}launcher/0 was killed by {signal.Signals(-code).name}; the run was ended", sys.stderr)
    return FAILED


def _watch_launcher(pipe: int, launcher: int) -> None:
    """Until it has ended."""
    watch, looked_at, killed_at = LauncherWatch(), time.monotonic(), math.inf
    is_stuck = False
    while True:
        if select.select([pipe], [], [], CHECK_S)[0]:
            if not (content := os.read(pipe, 4096)):
                if watch.log is not None:
                    watch.log.close()
                return
            watch.hear(content)
        if (gap_s := time.monotonic() - looked_at) < CHECK_S:
            continue
        looked_at += gap_s
        info = process_info(launcher)
        state = "" if info is None else info.state
        message, kills = watch.look(state, thread_work(launcher, launcher), gap_s, writes=_writes_output(launcher))
        _say(message, watch.log)
        if kills:
            _kill_with_stacks(launcher)
            killed_at = time.monotonic()
        if time.monotonic() > killed_at + DIES_S:
            if not is_stuck:
                stuck = f"launcher/0 cannot be ended: it hangs in the kernel (state {state}), such as on a dead disk"
                _say(stuck, watch.log)
            is_stuck = True
            kill(each.pid for each in descendants_of(launcher))


def _kill_with_stacks(launcher: int) -> None:
    """It writes them itself, unless it is stopped or hangs in the kernel."""
    if has_handler(launcher, signal.SIGUSR2):
        os.kill(launcher, signal.SIGUSR2)
        time.sleep(STACKS_S)
    os.kill(launcher, signal.SIGKILL)


def _say(message: str, log: HangLog | None) -> None:
    """Not on an output that its reader holds, as that would hold the guardian, too. There is none with `2>&-`."""
    if message and log is not None:
        log.add(message)
    if message and sys.stderr is not None and select.select([], [sys.stderr], [], 0)[1]:
        write_line(message, sys.stderr)


def _writes_output(pid: int) -> bool:
    """Whether a thread is in a write to standard output or error that are no files: a terminal or pipe may hold it for
    as long as its reader likes (Ctrl-S, a pager)."""
    for task in threads_of(pid):
        try:
            number, *arguments = (task / "syscall").read_text(encoding="ascii").split()
            if number in WRITES.get(os.uname().machine, ()) and int(arguments[0], 16) in OUTPUTS:
                return not stat.S_ISREG(Path(f"/proc/{pid}/fd/{int(arguments[0], 16)}").stat().st_mode)
        except OSError:
            continue  # it has ended, or may not be read
    return False


def _pass_signals_on(launcher: int) -> None:
    """The launcher has its own process group, so that it receives a Ctrl-C once."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        try:
            os.kill(launcher, number)
        except ProcessLookupError:
            return  # it has ended

    for number in HANDLED_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)


def _run_launcher(launch: Callable[[], int], guardian_pipe: int, memory: Path) -> None:
    """Never returns."""
    code = FAILED
    watcher = threading.Thread(target=_end_with_guardian, args=(guardian_pipe, memory), daemon=True)
    try:
        os.setpgid(0, 0)
        become_subreaper()
        set_process_name("areal launcher")
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it writes to the terminal from its own group
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a run goes on when its output is no longer read
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, stop_command)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
        watcher.start()
        code = launch()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        kill_descendants()
        if _is_closed(guardian_pipe):
            watcher.join()  # it clears the memory and ends this process
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                continue  # the reader is gone
        os._exit(code)


def _is_closed(pipe: int, wait_s: float = 0.0) -> bool:
    return bool(select.select([pipe], [], [], wait_s)[0])


def _end_with_guardian(guardian_pipe: int, memory: Path) -> None:
    """Runs in a thread, so that it acts while the launcher is busy. A guardian that was stopped is continued, as it
    would not clean up."""
    guardian = os.getppid()
    while not _is_closed(guardian_pipe, CHECK_S):
        info = process_info(guardian)
        if info is not None and info.state in STOPPED and os.getppid() == guardian:
            os.kill(guardian, signal.SIGCONT)
            if LAUNCHER_PULSE.log is not None:
                LAUNCHER_PULSE.log.add("guardian/0 was stopped by a signal; it is continued")
    LAUNCHER_PULSE.ends = True
    kill_descendants()
    remove_run_memory(memory)
    os._exit(FAILED)
