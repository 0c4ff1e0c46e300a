"""What a process is doing and how far it is, in memory that its launcher reads: no thread, event loop or user code
needs to run for that. Counters are advanced by the work itself, as a thread of its own would prove nothing.

The page has SLOTS slots. A slot belongs to one thread, or to one piece of work of an event loop, from the beginning of
its outermost phase to its end.
"""

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

PULSE_FD = "AREAL_LIKE_PULSE_FD"
"""Variable with the descriptor of the page. Without it nothing is recorded."""
SLOTS, SLOT_BYTES = 16, 256
PAGE_BYTES = SLOTS * SLOT_BYTES

LOADING, COMPILING, GENERATING, SERVING, UPDATING = "loading", "compiling", "generating", "serving", "updating"
STEP, COLLECTIVE, PUBLISHING, SAVING = "step", "collective", "publishing", "saving"
WAITING, IDLE = "waiting", "idle"
PHASES = (LOADING, COMPILING, GENERATING, SERVING, UPDATING, STEP, COLLECTIVE, PUBLISHING, SAVING, WAITING, IDLE)

NUMBERS = struct.Struct("<QQIIIId")
"""Phase (0: the slot is free), counter since the last collective, collectives entered, looks of waits, thread, the
phase around a wait, its limit in seconds."""
MOST = 0xFFFFFFFF
TEXTS = {"whom": (40, 24), "key": (64, 64), "what": (128, 128)}
"""Texts: place in the slot, and bytes."""
FORGET_S = 60.0
"""A wait of an event loop is over when it was not renewed for so long."""


class SlotSample(NamedTuple):
    """A slot as it was when read. `what` it waits for, from `whom`, at most `limit_s` seconds, set by `key`. `inner` is
    the phase in which it waits, else the same as `phase`. `waits`: how often waits were looked at, which is no
    progress. `thread`: 0 if the work is the whole process's."""

    number: int
    phase: str
    counter: int
    collectives: int
    thread: int
    what: str = ""
    whom: str = ""
    key: str = ""
    limit_s: float = 0.0
    inner: str = ""
    waits: int = 0


class PulseSlot:
    """One thread or piece of work; only its owner calls it."""

    def __init__(self, page: mmap.mmap | None, index: int) -> None:
        self._page, self._start = page, index * SLOT_BYTES
        self._stack: list[str] = []
        self._counter = self._collectives = self._looks = 0
        self._thread = threading.get_native_id()
        self._waits, self._waited_at, self._limit_s, self._what = False, 0.0, 0.0, ""
        self.is_loop = False
        """Whether it beats for an event loop, where any task may wait while the loop goes on."""

    def begin(self, phase: str) -> None:
        assert phase in PHASES, phase
        self._stack.append(phase)
        if phase == COLLECTIVE:
            self._collectives, self._counter = self._collectives + 1, 0
        self._advance()

    def end(self) -> None:
        self._stack.pop()
        self._advance()

    @property
    def depth(self) -> int:
        """How many phases it is in."""
        return len(self._stack)

    def become(self, phase: str, depth: int) -> None:
        """Another phase in place of the one at this depth."""
        self._stack[depth - 1] = phase
        self._write()

    def advance(self) -> None:
        """The work has made progress; a wait is over."""
        if not (self.is_loop and time.monotonic() - self._waited_at < FORGET_S):
            self._waits = False
        self._advance()

    def waits(self, what: str, whom: str, key: str, limit_s: float) -> None:
        """It waits until it advances, or begins or ends a phase; to be called repeatedly meanwhile."""
        self._waits, self._waited_at, self._limit_s, self._what = True, time.monotonic(), limit_s, what
        if self._page is not None:
            for name, text in (("what", what), ("whom", whom), ("key", key)):
                place, size = TEXTS[name]
                content = text.encode()[: size - 1]
                self._page[self._start + place : self._start + place + size] = content.ljust(size, b"\0")
        self._looks += 1
        self._write()

    def wait_is_over(self, what: str) -> None:
        """Unless it waits for something else meanwhile."""
        if self._waits and self._what == what:
            self._waits = False
            self._write()

    def is_of_process(self) -> None:
        """No one thread does the work: what the whole process computes, with what it has started, shows that it
        computes."""
        if self._thread:
            self._thread = 0
            self._write()

    def _advance(self) -> None:
        if not self.is_loop:
            self._waits = False
        self._counter += 1
        self._write()

    def _write(self) -> None:
        if self._page is None:
            return
        inner = PHASES.index(self._stack[-1]) + 1 if self._stack else 0
        number = PHASES.index(WAITING) + 1 if self._waits and not self.is_loop else inner
        limit_s = self._limit_s if self._waits else 0.0
        counts = self._counter, self._collectives & MOST, self._looks & MOST
        NUMBERS.pack_into(self._page, self._start, number, *counts, self._thread, inner, limit_s)


class Pulse:
    """The slots of this process."""

    def __init__(self, page: mmap.mmap | None) -> None:
        self._page, self._lock = page, threading.Lock()
        self._free = list(reversed(range(SLOTS)))
        self._of_thread = threading.local()

    def take(self) -> tuple[PulseSlot, int | None]:
        """A slot and its number; without a free one, a slot that records nothing."""
        with self._lock:
            index = self._free.pop() if self._page is not None and self._free else None
        return (PulseSlot(None, 0), None) if index is None else (PulseSlot(self._page, index), index)

    def give_back(self, index: int | None) -> None:
        if index is not None:
            with self._lock:
                self._free.append(index)

    @property
    def slot(self) -> PulseSlot | None:
        """That of this thread."""
        return getattr(self._of_thread, "slot", None)

    @contextmanager
    def phase(self, name: str) -> Iterator[PulseSlot]:
        slot, index = self.slot, None
        if is_outermost := slot is None:
            slot, index = self.take()
            self._of_thread.slot = slot
        assert slot is not None
        slot.begin(name)
        try:
            yield slot
        finally:
            slot.end()
            if is_outermost:
                self._of_thread.slot = None
                self.give_back(index)


_pulse = Pulse(None)
_loop: tuple[PulseSlot, int] | None = None
"""That of the process's event loop, and the depth of the loop's own phase."""


def open_pulse() -> None:
    """Uses the page that the launcher has passed to this process. Forks and children of it do not."""
    global _pulse
    text = os.environ.pop(PULSE_FD, None)
    if text is None:
        return
    descriptor = int(text)
    page = mmap.mmap(descriptor, PAGE_BYTES)
    os.close(descriptor)
    _pulse = Pulse(page)


def close_pulse() -> None:
    """Records nothing from now on, as in a fork."""
    global _pulse, _loop
    _pulse, _loop = Pulse(None), None


os.register_at_fork(after_in_child=close_pulse)


@contextmanager
def phase(name: str) -> Iterator[PulseSlot]:
    """What this thread does inside of it; phases may be nested."""
    with _pulse.phase(name) as slot:
        yield slot


@contextmanager
def loop_phase() -> Iterator[PulseSlot]:
    """The same for a thread with an event loop, whose tasks wait while the loop goes on: loading until `serves` is
    called."""
    global _loop
    with _pulse.phase(LOADING) as slot:
        before, slot.is_loop = (_loop, slot.is_loop), True
        _loop = slot, slot.depth
        try:
            yield slot
        finally:
            _loop, slot.is_loop = before


def serves() -> None:
    """The event loop of this process has begun its work."""
    if _loop is not None:
        slot, depth = _loop
        slot.become(SERVING, depth)


def advance() -> None:
    """This thread's work has made progress."""
    if (slot := _pulse.slot) is not None:
        slot.advance()


def waits(what: str, whom: str = "", key: str = "", limit_s: float = 0.0) -> None:
    """This thread waits for `what`; to be called repeatedly. Over with the next progress."""
    if (slot := _pulse.slot) is not None:
        slot.waits(what, whom, key, limit_s)


def wait_is_over(what: str) -> None:
    """This thread no longer waits for it."""
    if (slot := _pulse.slot) is not None:
        slot.wait_is_over(what)


class WorkPulse:
    """Work that is no thread's own, such as the requests in an engine: silent only while there is some."""

    def __init__(self, name: str, is_watched: bool = True) -> None:
        """Not watched: of another program, whose silence this process does not answer for."""
        self._slot = _pulse.take()[0] if is_watched else PulseSlot(None, 0)
        self._slot.begin(IDLE)
        self._name, self._running = name, 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """One piece of it."""
        self._running += 1
        if self._running == 1:
            self._slot.begin(self._name)
        try:
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._slot.end()
            else:
                self._slot.advance()

    def advance(self) -> None:
        self._slot.advance()

    def is_of_process(self) -> None:
        self._slot.is_of_process()


def read_slots(page: mmap.mmap | bytes) -> tuple[SlotSample, ...]:
    """The slots in use."""
    samples = []
    for index in range(SLOTS):
        start = index * SLOT_BYTES
        number, counter, collectives, looks, thread, inner, limit_s = NUMBERS.unpack_from(page, start)
        if not 0 < number <= len(PHASES):
            continue
        name = PHASES[number - 1]
        texts = dict.fromkeys(TEXTS, "")
        if limit_s:
            for field, (place, size) in TEXTS.items():
                content = bytes(page[start + place : start + place + size])
                texts[field] = content.partition(b"\0")[0].decode("utf-8", "replace")
        around = PHASES[inner - 1] if 0 < inner <= len(PHASES) else name
        what, whom, key = (texts[field] for field in ("what", "whom", "key"))
        facts = SlotSample(index, name, counter, collectives, thread, what, whom, key, limit_s, around, looks)
        samples.append(facts)
    return tuple(samples)
