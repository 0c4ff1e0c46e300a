"""Finds the processes that make no progress, and tells the culprit from those that wait for it. Pure.

Silence is measured from look to look, so that a machine or launcher that was suspended makes nobody suspect.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from areal_like.config.fields import Auto
from areal_like.process.pulse import COLLECTIVE, COMPILING, IDLE, LOADING, PUBLISHING, SAVING, WAITING, SlotSample
from launcher.agent.base import ProcessSample

AUTO_S, AUTO_FACTOR = 300.0, 10.0
MAX_GAP_S = 2.0
"""The most that one look adds to a silence."""
STOPPED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""
WORKING = (LOADING, COMPILING, PUBLISHING, SAVING)
"""Phases in which CPU time and bytes count as progress."""
DEPENDENT = (COLLECTIVE, PUBLISHING)
"""Phases whose silence may be the fault of another process."""
PASSIVE = (WAITING, IDLE)
RENEWED_S = 60.0
"""A wait that its process has not looked at for so long is over, and what it did around the wait has not gone on."""
BUSY_SHARE, LEAST_BYTES = 0.05, 4096
"""Progress by work: a share of a core, or bytes."""
MAX_WAITERS = 3


class Hang(NamedTuple):
    """A process past its limit."""

    name: str
    message: str


class Look(NamedTuple):
    """What one look has found: messages for the user, and processes to kill."""

    notices: list[str]
    hangs: list[Hang]


@dataclass
class _Silence:
    """Of one slot, or of a whole process that is stopped."""

    mark: tuple[object, ...]
    work: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0


class Suspect(NamedTuple):
    """A process that is silent, in the phase that decides about its limit."""

    name: str
    phase: str
    silent_s: float
    is_stopped: bool
    collectives: int
    counter: int


class HangWatch:
    """`limits`: seconds by phase. `floors`: the least that `auto` gives, by role and phase."""

    def __init__(
        self,
        notice_s: float,
        limits: Mapping[str, float | Auto],
        floors: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        self._notice_s, self._limits, self._floors = notice_s, limits, floors or {}
        self._silences: dict[tuple[str, int], _Silence] = {}
        self._longest: dict[tuple[str, str], float] = {}
        self._noticed: set[str] = set()
        self._reported: set[str] = set()
        """Starts that were returned as hangs."""

    def look(self, samples: Sequence[ProcessSample], gap_s: float) -> Look:
        """To be called about once a second, with the seconds since the last time. A hang is returned once."""
        samples = [each for each in samples if each.start not in self._reported]
        suspects = list(self._suspects(samples, min(gap_s, MAX_GAP_S)))
        culprits = _culprits([each for each in suspects if each.silent_s >= self._least_s(each)], samples)
        notices = [self._notice(each, samples) for each in culprits if each.name not in self._noticed]
        again = self._noticed - {each.name for each in suspects if each.silent_s >= self._least_s(each)}
        alive = {each.name for each in samples}
        notices += [f"{name} makes progress again" for name in sorted(again & alive)]
        self._noticed = (self._noticed - again) | {each.name for each in culprits}
        late = [each for each in culprits if each.silent_s >= self.limit_s(each.name, each.phase)]
        hangs = [Hang(each.name, self._message(each, samples)) for each in late]
        if hangs:
            killed = {each.name for each in hangs}
            self._reported |= {each.start for each in samples if each.name in killed}
            self._noticed -= killed
            self._forgive(samples, killed)
        return Look(notices, hangs)

    def silent(self, samples: Sequence[ProcessSample]) -> dict[str, str]:
        """Names of processes that are stopped or past the time of a notice, and why."""
        suspects = list(self._suspects(samples, 0.0))
        return {
            each.name: self._message(each, samples)
            for each in suspects
            if each.is_stopped or each.silent_s >= self._least_s(each)
        }

    def limit_s(self, name: str, phase: str) -> float:
        role, phase = name.partition("/")[0], WAITING if phase == IDLE else phase
        limit_s = self._limits[phase]
        if not isinstance(limit_s, str):
            return limit_s
        longest_s = self._longest.get((role, phase), 0.0)
        return max(AUTO_S, AUTO_FACTOR * longest_s, self._floors.get((role, phase), 0.0))

    def _least_s(self, suspect: Suspect) -> float:
        """The silence after which it is named. A wait looks up rarely, so it is named only when it is killed."""
        limit_s = self.limit_s(suspect.name, suspect.phase)
        is_wait = suspect.phase in PASSIVE and not suspect.is_stopped
        return limit_s if is_wait else min(self._notice_s, limit_s)

    def _suspects(self, samples: Sequence[ProcessSample], gap_s: float) -> Iterator[Suspect]:
        seen: dict[tuple[str, int], _Silence] = {}
        for sample in samples:
            role, is_stopped = sample.name.partition("/")[0], sample.state in STOPPED
            silences = []
            for slot in sample.slots:
                key = (sample.start, slot.number)
                silence, gap = self._silence(self._silences.get(key), slot, sample.work.get(slot.number), gap_s)
                seen[key] = silence
                silences.append((silence.seconds, slot))
                if gap and not is_stopped:
                    self._longest[role, gap[0]] = max(self._longest.get((role, gap[0]), 0.0), gap[1])
            key = (sample.start, -1)
            whole = self._silences.get(key, _Silence(()))
            whole.seconds = whole.seconds + gap_s if is_stopped else 0.0
            seen[key] = whole
            if is_stopped:
                phase = next((slot.phase for slot in sample.slots if slot.phase not in PASSIVE), WAITING)
                yield Suspect(sample.name, phase, whole.seconds, True, 0, 0)
                continue
            # Of several slots the one that is furthest past its limit decides.
            phases = [(seconds, slot, _phase_of(slot, seconds)) for seconds, slot in silences if slot.phase != IDLE]
            if phases:
                seconds, slot, phase = max(phases, key=lambda each: each[0] / self.limit_s(sample.name, each[2]))
                yield Suspect(sample.name, phase, seconds, False, slot.collectives, slot.counter)
        self._silences = seen

    @staticmethod
    def _silence(
        before: _Silence | None, slot: SlotSample, work: tuple[float, float] | None, gap_s: float
    ) -> tuple[_Silence, tuple[str, float] | None]:
        """Also the phase and length of a silence that has just ended."""
        mark, now = (slot.thread, slot.phase, slot.counter), work or (0.0, 0.0)
        if before is None:
            return _Silence(mark, now), None
        works = (slot.inner or slot.phase) in WORKING and work is not None and gap_s > 0 and before.mark == mark
        cpu_s, size = now[0] - before.work[0], now[1] - before.work[1]
        if before.mark == mark and not (works and (cpu_s >= BUSY_SHARE * gap_s or size >= LEAST_BYTES)):
            return _Silence(mark, now if gap_s else before.work, before.seconds + gap_s), None
        return _Silence(mark, now), (str(before.mark[1]), before.seconds)

    def _forgive(self, samples: Sequence[ProcessSample], killed: set[str]) -> None:
        """Others may have been silent because of those, and need time until these work again."""
        starts = {each.start for each in samples if each.name not in killed and each.state not in STOPPED}
        for (start, _), silence in self._silences.items():
            if start in starts:
                silence.seconds = 0.0

    def _notice(self, suspect: Suspect, samples: Sequence[ProcessSample]) -> str:
        limit_s, key = self.limit_s(suspect.name, suspect.phase), _key(suspect.phase)
        return f"{_silence_text(suspect, samples)}; it is killed after {limit_s:g} s ({key})"

    def _message(self, suspect: Suspect, samples: Sequence[ProcessSample]) -> str:
        return f"{_key(suspect.phase)}: {_silence_text(suspect, samples)}"


def _phase_of(slot: SlotSample, silent_s: float) -> str:
    return slot.inner or slot.phase if slot.phase == WAITING and silent_s > RENEWED_S else slot.phase


def _key(phase: str) -> str:
    return f"watchdog.{WAITING if phase == IDLE else phase}_s"


def _silence_text(suspect: Suspect, samples: Sequence[ProcessSample]) -> str:
    stopped = " (stopped by a signal)" if suspect.is_stopped else ""
    text = f"{suspect.name} has made no progress for {suspect.silent_s:.0f} s while {_doing(suspect.phase)}{stopped}"
    return "; ".join([text, *waits_of([each for each in samples if each.name != suspect.name], suspect.name)])


def _doing(phase: str) -> str:
    return {"step": "in a training step", COLLECTIVE: "waiting for other ranks", WAITING: "waiting"}.get(phase, phase)


def waits_of(samples: Sequence[ProcessSample], culprit: str = "") -> list[str]:
    """What processes wait for, those that wait for the culprit first."""
    waits = [
        (
            slot.whom != culprit or not culprit,
            f"{each.name} {_wait_text(slot)}",
        )
        for each in samples
        for slot in each.slots
        if slot.what
    ]
    return list(dict.fromkeys(text for _, text in sorted(waits, key=lambda wait: wait[0])))[:MAX_WAITERS]


def _wait_text(slot: SlotSample) -> str:
    return f"waits for {slot.what} (at most {slot.limit_s:g} s, {slot.key})"


def _culprits(suspects: Sequence[Suspect], samples: Sequence[ProcessSample]) -> list[Suspect]:
    """Those that a signal has stopped, else those whose silence is their own, else those that may wait for others. Of
    several ranks in one step the one that is behind; all of them if that is nobody."""
    if stopped := [each for each in suspects if each.is_stopped]:
        return stopped
    own = [each for each in suspects if each.phase not in DEPENDENT]
    chosen = own or list(suspects)
    ranks = [each for each in chosen if each.name.startswith("trainer/")]
    if not own and any(each.phase == COLLECTIVE for each in ranks):
        silent = {each.name for each in ranks}
        if any(each.name.startswith("trainer/") and each.name not in silent for each in samples):
            return [each for each in chosen if each not in ranks]  # they wait for a rank that makes progress
    if len(ranks) > 1:
        least = min((each.collectives, each.counter) for each in ranks)
        behind = [each for each in ranks if (each.collectives, each.counter) == least]
        return [each for each in chosen if each not in ranks or each in behind]
    return list(chosen)
