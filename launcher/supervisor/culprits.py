"""Tells the culprit from the processes that wait for it. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from areal_like.process.patience import WORKING
from areal_like.process.pulse import COLLECTIVE, IDLE, PUBLISHING, STEP, UPDATING, WAITING
from launcher.agent.base import ProcessSample

DEPENDENT = (COLLECTIVE, PUBLISHING, UPDATING)
"""Phases whose silence may be the fault of another process."""
PASSIVE = (WAITING, IDLE)


class Suspect(NamedTuple):
    """A process that is silent, in the phase that decides about its limit. `kept`: whom it has kept waiting too
    long."""

    name: str
    start: str
    phase: str
    silent_s: float
    limit_s: float
    is_stopped: bool
    computes: bool = False
    collectives: int = 0
    counter: int = 0
    kept: str = ""

    @property
    def is_rank(self) -> bool:
        return self.name.startswith("trainer/")

    @property
    def progress(self) -> tuple[int, int]:
        """To be compared with that of another rank: they enter the same collectives, with the same work in between."""
        return self.collectives, self.counter

    @property
    def only_computes(self) -> bool:
        """It uses CPU time while it loads, which is progress until a limit of its own: its silence is that of all other
        signs."""
        return self.computes and self.phase in WORKING


def hurried(suspects: list[Suspect], notice_s: float, give_up_s: float) -> list[Suspect]:
    """Where a rank has waited so long that it soon gives up, those that keep it waiting are past their limits, however
    much they compute: else the run would fail by the name of the one that waits."""
    ranks = [each for each in suspects if each.is_rank]
    waits = [each for each in ranks if not each.is_stopped and _waits_for_one_of(each, ranks)]
    longest = max(waits, key=lambda each: each.silent_s, default=None)
    if longest is None or longest.silent_s < give_up_s:
        return suspects
    kept = f"{longest.name} has waited for it for {longest.silent_s:.0f} s, and gives up after dist_timeout_s"
    least_s = min(notice_s, give_up_s)

    def is_late(suspect: Suspect) -> bool:
        has_own_work = suspect.is_rank and (suspect.is_stopped or suspect.phase not in (*DEPENDENT, *PASSIVE))
        return has_own_work and suspect not in waits and least_s <= suspect.silent_s < suspect.limit_s < math.inf

    return [each._replace(limit_s=each.silent_s, kept=kept) if is_late(each) else each for each in suspects]


def _waits_for_one_of(rank: Suspect, ranks: Sequence[Suspect]) -> bool:
    """In a collective; or in a step, whose passes gather the parts of a sharded model, where it does nothing and
    another rank is not as far, or is as far and computes."""
    if rank.phase != STEP or rank.computes:
        return rank.phase == COLLECTIVE
    return any(
        each.progress < rank.progress or (each.progress == rank.progress and each.computes)
        for each in ranks
        if each.phase == STEP or each.is_stopped
    )


def culprits_of(suspects: Sequence[Suspect], samples: Sequence[ProcessSample]) -> list[Suspect]:
    """Those that a signal has stopped, else those whose silence is their own, else those that may wait for others. Of
    several ranks in one step the one that is behind; all of them if that is nobody. Ranks that wait for each other do
    so since the last one came. A server may wait for weights that a trainer is still sending; of both that hang, the
    server is replaced first, as little is lost with it."""
    if stopped := [each for each in suspects if each.is_stopped]:
        return stopped
    own = [each for each in suspects if each.phase not in DEPENDENT]
    silent = {each.name for each in suspects}
    sends = any(slot.phase == PUBLISHING for each in samples if each.name not in silent for slot in each.slots)
    updates = not sends and any(each.phase == UPDATING for each in suspects)
    chosen = own or [each for each in suspects if each.phase != (PUBLISHING if updates else UPDATING)]
    ranks = [each for each in chosen if each.is_rank]
    a_rank_goes_on = any(each.name.startswith("trainer/") and each.name not in silent for each in samples)
    if not own and a_rank_goes_on and any(each.phase == COLLECTIVE for each in ranks):
        return [each for each in chosen if each not in ranks]  # they wait for that one
    if len(ranks) > 1:
        least = min(each.progress for each in ranks)
        behind = [each for each in ranks if each.progress == least]
        behind = [each for each in behind if not _waits_for_one_of(each, behind) or each.phase == COLLECTIVE]
        together_s = math.inf if own else min(each.silent_s for each in ranks)
        others = [each for each in chosen if each not in ranks]
        return others + [each._replace(silent_s=min(each.silent_s, together_s)) for each in behind]
    return list(chosen)
