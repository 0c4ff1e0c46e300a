"""One transfer of weights from the trainer to a group of servers."""

from dataclasses import dataclass
from typing import Any

from areal_like.rollout.controller.servers import ServerHandle
from areal_like.weights.rendezvous import Rendezvous


@dataclass(eq=False)
class BroadcastRound:
    """`joined`: the trainer takes part. `why`: the reason why it was broken up; empty if it was not."""

    rendezvous: Rendezvous
    version: int
    members: list[ServerHandle]
    sender: dict[str, Any]
    continues: str = ""
    """The group of an earlier round with the same members, which the trainer may still be in."""
    joined: bool = False
    over: bool = False
    why: str = ""

    def may_be_continued_by(self, other: "BroadcastRound") -> bool:
        """Whether the same processes take part, in the same order and by the same path."""
        mine = self.members, self.sender, self.rendezvous.backend
        return mine == (other.members, other.sender, other.rendezvous.backend)
