"""For how long a program wanted to run and no processor was free: its time limit says nothing about it then."""

import signal
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from areal_like.process.process_tree import cpu_seconds_of, ignores, threads_of

MAX_READY = 2
"""Of its threads. More of them keep each other waiting, which is no fault of the machine."""


class ThreadUse(NamedTuple):
    """`waited_s`: ready to run, but without a processor. `is_ready`: it runs, or waits so."""

    ran_s: float
    waited_s: float
    is_ready: bool


class ProcessorUse(NamedTuple):
    """Of a program at one time, with all that it has started. `hides_children`: one of its processes ignores the end of
    those that it starts."""

    at_s: float
    cpu_s: float
    threads: Mapping[int, ThreadUse]
    hides_children: bool = False


def starved_s(before: ProcessorUse, after: ProcessorUse) -> float:
    """The longest wait of a thread, less what the program computed meanwhile. A program that sleeps waits for no
    processor, and one that makes its own processes wait uses processors: also one whose children end without a trace of
    what they used."""
    if after.hides_children or sum(each.is_ready for each in after.threads.values()) > MAX_READY:
        return 0.0
    waits = (_waited_s(before, after, thread) for thread in after.threads)
    longest = min(max(waits, default=0.0), after.at_s - before.at_s)
    return max(0.0, longest - max(0.0, after.cpu_s - before.cpu_s))


def _waited_s(before: ProcessorUse, after: ProcessorUse, thread: int) -> float:
    earlier = before.threads.get(thread)
    return after.threads[thread].waited_s - (0.0 if earlier is None else earlier.waited_s)


def processor_use(pids: Iterable[int], now_s: float, before: ProcessorUse | None = None) -> ProcessorUse:
    """A kernel that does not count waits (CONFIG_SCHED_INFO) gives none: then no program is starved."""
    pids = list(pids)
    threads: dict[int, ThreadUse] = {}
    for folder in (each for pid in pids for each in threads_of(pid)):
        try:
            ran, waited, _ = (folder / "schedstat").read_text(encoding="ascii").split()
            state = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        thread = int(folder.name)
        found = ThreadUse(int(ran) / 1e9, int(waited) / 1e9, state == "R")
        threads[thread] = found if before is None else _with_present_wait(found, thread, now_s, before)
    hides_children = any(ignores(pid, signal.SIGCHLD) for pid in pids)
    return ProcessorUse(now_s, sum(map(cpu_seconds_of, pids)), threads, hides_children)


def _with_present_wait(found: ThreadUse, thread: int, now_s: float, before: ProcessorUse) -> ThreadUse:
    """The kernel counts a wait when it ends. A thread that was ready, is ready, and never ran has waited all the
    time."""
    earlier = before.threads.get(thread)
    if earlier is None or not (earlier.is_ready and found.is_ready) or found.ran_s > earlier.ran_s:
        return found
    return found._replace(waited_s=max(found.waited_s, earlier.waited_s + now_s - before.at_s))
