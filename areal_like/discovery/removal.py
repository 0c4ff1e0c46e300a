"""Removes an entry, and never another one that has come into its place.

Two that both see a dead entry must not remove the living one which the quicker of them has put there. So who removes an
entry first adds a mark that bears the entry's id, and then looks once more. The mark of one that died meanwhile is void
by the same rule, and removed in the same way.
"""

import time
from collections.abc import Callable

from areal_like.discovery.liveness import Liveness
from areal_like.discovery.slot import Claim, EntryFiles

MOST_TRIES, PAUSE_S = 50, 0.02


def remove(slot: EntryFiles, id: str, judge: Liveness, sign: Callable[[], Claim]) -> Claim | None:
    """Afterwards the entry with that id is gone; or who is at it, and has been for long, is returned.

    `sign` makes a new claim of this process.
    """
    mark = slot.mark(id)
    for _ in range(MOST_TRIES):
        try:
            is_marked = mark.hold(sign())
        except FileNotFoundError:
            return None  # with its folder the entry has gone
        if is_marked:
            try:
                held = slot.read()
                if held is not None and held.claim.id == id:
                    slot.path.unlink(missing_ok=True)
                    slot.forget(id)
            finally:
                mark.path.unlink(missing_ok=True)
            return None
        if not remove_if_dead(mark, judge, sign):
            time.sleep(PAUSE_S)
    remover = mark.read()
    return None if remover is None else remover.claim


def remove_if_dead(slot: EntryFiles, judge: Liveness, sign: Callable[[], Claim]) -> bool:
    """Whether there is nothing, or nothing any more."""
    held = slot.read()
    if held is None:
        return True
    return judge.why_dead(held) is not None and remove(slot, held.claim.id, judge, sign) is None
