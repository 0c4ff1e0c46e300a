"""Finds the processes that make no progress, names them and says which are to be killed. Pure.

Silence is measured from look to look, so that a machine or launcher that was suspended makes nobody suspect.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from areal_like.config.fields import Auto
from areal_like.process.patience import AUTO_S, BUSY_FACTOR, WORKING
from areal_like.process.pulse import COLLECTIVE, GENERATING, IDLE, STEP, UPDATING, WAITING, SlotSample
from launcher.agent.base import STOPPED, ProcessSample
from launcher.supervisor.culprits import PASSIVE, Suspect, culprits_of, hurried

AUTO_FACTOR = 10.0
"""`auto` is so many times the longest pause, up to BUSY_FACTOR times what it is at first, as those that wait last so
long; it is BUSY_FACTOR times longer where CPU time is used, and is doubled up to that by hangs that end in a kill."""
MAX_GAP_S = 2.0
"""The most that one look adds to a silence."""
BUSY = (STEP, GENERATING, UPDATING)
"""Phases in which a part of the work may compute for long, and an endless loop computes, too."""
RENEWED_S = 60.0
"""A wait that its process has not looked at for so long is over, and what it did around the wait has not gone on."""
LEAST_CPU_S, LEAST_BYTES = 0.5, 1 << 20
"""Progress by work: CPU time, or bytes, since the last progress."""
UPDATE_BYTES = 64 << 20
"""The same of an update of weights, beside which an engine generates, and is asked for its statistics."""
BUSY_SHARE = 0.05
COMPUTES_S = 30.0
"""Who computes used this share of a core so short a time ago."""
MAX_WAITERS = 3


class Hang(NamedTuple):
    """A process past its limit."""

    name: str
    start: str
    phase: str
    message: str
    is_stopped: bool
    limit_s: float


class Look(NamedTuple):
    """What one look has found: messages for the user, and processes to kill."""

    notices: list[str]
    hangs: list[Hang]


@dataclass
class _Silence:
    """Of one slot, or of a whole process that is stopped. `work` is what it had used by its last progress, `work_s`
    seconds ago; since `idle_s` it does not compute. `still_s`: since its last progress that was more than CPU time, by
    when it had read and written `still_bytes`."""

    mark: tuple[object, ...]
    work: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0
    work_s: float = 0.0
    idle_s: float = math.inf
    still_s: float = 0.0
    still_bytes: float = 0.0


class HangWatch:
    """`limits`: seconds by phase. `floors`: the least that `auto` gives, by role and phase. `give_up_s`: how long ranks
    wait for each other until they soon give up."""

    def __init__(
        self,
        notice_s: float,
        limits: Mapping[str, float | Auto | None],
        floors: Mapping[tuple[str, str], float] | None = None,
        give_up_s: float = math.inf,
    ) -> None:
        self._notice_s, self._limits, self._floors, self._give_up_s = notice_s, limits, floors or {}, give_up_s
        self._silences: dict[tuple[str, int], _Silence] = {}
        self._longest: dict[tuple[str, str], float] = {}
        self._killed: dict[tuple[str, str], int] = {}
        """Hangs that ended in a kill."""
        self._noticed: set[str] = set()
        self._reported: set[str] = set()
        """Starts that were returned as hangs."""

    def look(self, samples: Sequence[ProcessSample], gap_s: float) -> Look:
        """To be called about once a second, with the seconds since the last time. A hang is returned once."""
        samples = [each for each in samples if each.start not in self._reported]
        suspects = [each for each in self._suspects(samples, min(gap_s, MAX_GAP_S)) if self._is_named(each)]
        # Who computes while it loads goes on until its limit: it is no culprit of what others do.
        loads = [each for each in suspects if each.only_computes and each.silent_s < each.limit_s]
        culprits = culprits_of([each for each in suspects if each not in loads], samples) + loads
        notices = [self._notice(each, samples) for each in culprits if each.name not in self._noticed]
        again = self._noticed - {each.name for each in suspects}
        alive = {each.name for each in samples}
        notices += [f"{name} makes progress again" for name in sorted(again & alive)]
        self._noticed = (self._noticed - again) | {each.name for each in culprits}
        late = [each for each in culprits if each.silent_s >= each.limit_s]
        hangs = [
            Hang(each.name, each.start, each.phase, self._message(each, samples), each.is_stopped, each.limit_s)
            for each in late
        ]
        if hangs:
            killed = {each.name for each in hangs}
            self._reported |= {each.start for each in samples if each.name in killed}
            self._noticed -= killed
            self._forgive(samples, killed)
        return Look(notices, hangs)

    def confirmed(self, hangs: Sequence[Hang], samples: Sequence[ProcessSample]) -> list[Hang]:
        """Of earlier hangs those that still are, now that they are to be killed. The others are watched again."""
        silent = {each.start: each.silent_s for each in self._suspects(samples, 0.0)}
        still = [each for each in hangs if silent.get(each.start, -1.0) >= each.limit_s]
        self._reported -= {each.start for each in hangs if each not in still}
        for role, phase in {(_role(each.name), _limit_phase(each.phase)) for each in still if not each.is_stopped}:
            self._killed[role, phase] = self._killed.get((role, phase), 0) + 1
        return still

    def silent(self, samples: Sequence[ProcessSample], late: Collection[str] = ()) -> dict[str, tuple[str, str]]:
        """Processes that are past their limit: the start of each, and why. Those that are stopped, or `late` although
        they wait for nobody, have the time of a notice only."""
        found = {}
        for each in self._suspects(samples, 0.0):
            goes_on = each.phase in PASSIVE or each.only_computes
            is_late = each.name in late and not goes_on and math.isfinite(each.limit_s)
            limit_s = min(self._notice_s, each.limit_s) if is_late else each.limit_s
            if each.silent_s >= (self._notice_s if each.is_stopped else limit_s):
                found[each.name] = each.start, self._message(each, samples)
        return found

    def limit_s(self, name: str, phase: str, *, is_stopped: bool = False) -> float:
        """Of a process that does not compute; infinite for none. What it may do for long is no reason for more time
        while it is stopped."""
        role, phase = _role(name), _limit_phase(phase)
        limit_s = self._limits[phase]
        if limit_s is None:
            return math.inf
        if not isinstance(limit_s, str):
            return limit_s
        floor_s = 0.0 if is_stopped else self._floors.get((role, phase), 0.0)
        longest_s = min(AUTO_FACTOR * self._longest.get((role, phase), 0.0), AUTO_S * BUSY_FACTOR)
        return max(self._least_auto_s(role, phase), longest_s, floor_s)

    def _least_auto_s(self, role: str, phase: str) -> float:
        return AUTO_S * min(2.0 ** self._killed.get((role, phase), 0), BUSY_FACTOR)

    def busy_limit_s(self, name: str, phase: str) -> float:
        """Of a process that computes while it loads, and does nothing else: also an endless loop computes. Earlier
        kills do not double it, so that those that wait for it last longer."""
        floor_s = self._floors.get((_role(name), phase), 0.0) if isinstance(self._limits[phase], str) else 0.0
        return max(BUSY_FACTOR * self._plain_s(phase), floor_s)

    def _plain_s(self, phase: str) -> float:
        limit_s = self._limits[phase]
        return math.inf if limit_s is None else AUTO_S if isinstance(limit_s, str) else limit_s

    def _is_named(self, suspect: Suspect) -> bool:
        """A wait looks up rarely, so it is named only when it is killed."""
        is_wait = suspect.phase in PASSIVE and not suspect.is_stopped
        least_s = suspect.limit_s if is_wait else min(self._notice_s, suspect.limit_s)
        return suspect.only_computes or suspect.silent_s >= least_s

    def _suspects(self, samples: Sequence[ProcessSample], gap_s: float) -> list[Suspect]:
        return hurried(list(self._all_suspects(samples, gap_s)), self._notice_s, self._give_up_s)

    def _all_suspects(self, samples: Sequence[ProcessSample], gap_s: float) -> Iterator[Suspect]:
        seen: dict[tuple[str, int], _Silence] = {}
        for sample in samples:
            role, is_stopped = _role(sample.name), sample.state in STOPPED
            silences = []
            for slot in sample.slots:
                key = (sample.start, slot.number)
                work, slot_gap_s = sample.work.get(slot.number), 0.0 if is_stopped else gap_s
                silence, gap = self._silence(self._silences.get(key), slot, work, slot_gap_s)
                seen[key] = silence
                silences.append((silence, slot))
                if gap:
                    self._longest[role, gap[0]] = max(self._longest.get((role, gap[0]), 0.0), gap[1])
            key = (sample.start, -1)
            whole = self._silences.get(key, _Silence(()))
            whole.seconds = whole.seconds + gap_s if is_stopped else 0.0
            seen[key] = whole
            if is_stopped:
                phase = next((slot.phase for slot in sample.slots if slot.phase not in PASSIVE), WAITING)
                limit_s = self.limit_s(sample.name, phase, is_stopped=True)
                yield Suspect(sample.name, sample.start, phase, whole.seconds, limit_s, True)
                continue
            each_slot = [self._suspect(sample, *each) for each in silences if each[1].phase != IDLE]
            if each_slot:  # the one that is furthest past its limit decides
                yield max(each_slot, key=lambda each: each.silent_s / each.limit_s)
        self._silences = seen

    def _suspect(self, sample: ProcessSample, silence: _Silence, slot: SlotSample) -> Suspect:
        phase = _phase_of(slot, silence.seconds)
        limit_s, computes = self.limit_s(sample.name, phase), False
        if phase in BUSY and isinstance(self._limits[phase], str) and math.isfinite(silence.idle_s):
            computes = silence.idle_s < COMPUTES_S
            least_s = self._least_auto_s(_role(sample.name), phase) if phase == STEP else AUTO_S
            busy_s = BUSY_FACTOR * least_s  # nobody waits for a rank's step but other ranks, who hurry it
            ended_s = silence.seconds - silence.idle_s
            limit_s = max(limit_s, busy_s if computes else min(busy_s, ended_s + limit_s))
        progress = slot.collectives, slot.counter
        uses_cpu = phase in WORKING and silence.seconds < min(self._notice_s, limit_s)
        if uses_cpu and silence.still_s >= self._plain_s(phase):
            busy_s = self.busy_limit_s(sample.name, phase)
            return Suspect(sample.name, sample.start, phase, silence.still_s, busy_s, False, True, *progress)
        return Suspect(sample.name, sample.start, phase, silence.seconds, limit_s, False, computes, *progress)

    @staticmethod
    def _silence(
        before: _Silence | None, slot: SlotSample, work: tuple[float, float] | None, gap_s: float
    ) -> tuple[_Silence, tuple[str, float] | None]:
        """Also the phase and length of a silence that has just ended."""
        mark = slot.thread, slot.phase, slot.collectives, slot.counter, slot.waits
        now = work or (0.0, 0.0)
        if before is None:
            return _Silence(mark, now, still_bytes=now[1]), None
        cpu_s, size, work_s = now[0] - before.work[0], now[1] - before.work[1], before.work_s + gap_s
        phase, has_worked = slot.inner or slot.phase, work is not None and cpu_s >= LEAST_CPU_S
        has_moved = work is not None and size >= (UPDATE_BYTES if phase == UPDATING else LEAST_BYTES)
        works = (phase in WORKING and (has_worked or has_moved)) or (phase == UPDATING and has_moved)
        still_s, still_bytes = before.still_s + gap_s, min(before.still_bytes, now[1])  # less where a child has ended
        if before.mark != mark or now[1] >= before.still_bytes + LEAST_BYTES:
            still_s, still_bytes = 0.0, now[1]
        if before.mark != mark or works:
            after = _Silence(mark, now, still_s=still_s, still_bytes=still_bytes)
            return after, (str(before.mark[1]), before.seconds)
        after = replace(before, seconds=before.seconds + gap_s, work_s=work_s, idle_s=before.idle_s + gap_s)
        after = replace(after, still_s=still_s, still_bytes=still_bytes)
        if phase in BUSY and has_worked and cpu_s >= BUSY_SHARE * work_s:
            after = replace(after, work=(now[0], before.work[1]), work_s=0.0, idle_s=0.0)
        return after, None

    def _forgive(self, samples: Sequence[ProcessSample], killed: set[str]) -> None:
        """Others may have been silent because of those, and need time until these work again."""
        starts = {each.start for each in samples if each.name not in killed and each.state not in STOPPED}
        for (start, _), silence in self._silences.items():
            if start in starts:
                silence.seconds = silence.still_s = 0.0

    def _notice(self, suspect: Suspect, samples: Sequence[ProcessSample]) -> str:
        when = "not killed" if math.isinf(suspect.limit_s) else f"killed after {suspect.limit_s:g} s"
        return f"{_silence_text(suspect, samples)}; it is {when} ({_key(suspect.phase)})"

    def _message(self, suspect: Suspect, samples: Sequence[ProcessSample]) -> str:
        return f"{_key(suspect.phase)}: {_silence_text(suspect, samples)}"


def _phase_of(slot: SlotSample, silent_s: float) -> str:
    return slot.inner or slot.phase if slot.phase == WAITING and silent_s > RENEWED_S else slot.phase


def _role(name: str) -> str:
    return name.partition("/")[0]


def _limit_phase(phase: str) -> str:
    return WAITING if phase == IDLE else phase


def _key(phase: str) -> str:
    return f"watchdog.{_limit_phase(phase)}_s"


def _silence_text(suspect: Suspect, samples: Sequence[ProcessSample]) -> str:
    stopped = " (stopped by a signal)" if suspect.is_stopped else " (it computes)" if suspect.computes else ""
    text = f"{suspect.name} has made no progress for {suspect.silent_s:.0f} s while {_doing(suspect.phase)}{stopped}"
    if suspect.only_computes:
        text = f"{suspect.name} has computed for {suspect.silent_s:.0f} s while {_doing(suspect.phase)}, without any "
        text += "other sign of progress"
    others = [each for each in samples if each.name != suspect.name]
    return "; ".join(filter(None, [text, suspect.kept, *waits_of(others, suspect.name)]))


def _doing(phase: str) -> str:
    texts = {
        STEP: "in a training step",
        COLLECTIVE: "waiting for other ranks",
        UPDATING: "updating its weights",
        WAITING: "waiting",
    }
    return texts.get(phase, phase)


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
