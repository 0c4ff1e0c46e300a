"""Tells the culprit from the processes that wait for it. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from areal_like.process.patience import WORKING
from areal_like.process.pulse import COLLECTIVE, IDLE, PUBLISHING, UPDATING, WAITING
from launcher.agent.base import ProcessSample

DEPENDENT = (COLLECTIVE, PUBLISHING, UPDATING)
"""Phases whose silence may be the fault of another process."""
PASSIVE = (WAITING, IDLE)


class Suspect(NamedTuple):
    """A process that is silent, in the phase that decides about its limit."""

    name: str
    start: str
    phase: str
    silent_s: float
    limit_s: float
    is_stopped: bool
    computes: bool = False
    collectives: int = 0
    counter: int = 0

    @property
    def is_rank(self) -> bool:
        return self.name.startswith("trainer/")

    @property
    def only_computes(self) -> bool:
        """It uses CPU time while it loads, which is progress until a limit of its own: its silence is that of all other
        signs."""
        return self.computes and self.phase in WORKING


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
        least = min((each.collectives, each.counter) for each in ranks)
        behind = [each for each in ranks if (each.collectives, each.counter) == least]
        together_s = math.inf if own else min(each.silent_s for each in ranks)
        others = [each for each in chosen if each not in ranks]
        return others + [each._replace(silent_s=min(each.silent_s, together_s)) for each in behind]
    return list(chosen)
