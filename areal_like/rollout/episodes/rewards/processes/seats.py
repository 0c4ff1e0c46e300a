"""The processes of a reward: those in the pool, those outside that take far longer than usual, and a spare one."""

import asyncio
import logging
import time
from typing import Any

from areal_like.config.problems import ConfigError
from areal_like.process.tree_usage import states_of_tree
from areal_like.rollout.episodes.rewards import RewardSpec
from areal_like.rollout.episodes.rewards.limits import RewardLimits
from areal_like.rollout.episodes.rewards.processes.seat import Seat, SeatOwner
from areal_like.rollout.episodes.rewards.processes.starter import KILL_TIMEOUT_S, RewardStarter

OUTSIDE_FACTOR = 32
"""At most this many times `most` processes are outside."""
COMPUTING_FACTOR = 4
"""Of these, so many that compute. What waits takes nothing from the others; what computes slows them, so that more of
them would leave the pool: beside other work a machine could be busy with these alone."""
MAX_KILLED_IMPORTS = 3
"""In a row: then the reason is the reward, which may need more memory than there is."""
START_DELAY_S = 1.0
"""After a process could not be started."""

log = logging.getLogger(__name__)


class RewardSeats:
    """Up to `most` processes in the pool. The template that they are forked from starts at once."""

    def __init__(
        self, spec: RewardSpec, timeout_s: float, limits: RewardLimits, setup_timeout_s: float, most: int
    ) -> None:
        self.inside: list[Seat] = []
        self.outside: list[Seat] = []
        self.setup_timeout_s = setup_timeout_s
        self.others: list[int] = []
        """Once it is imported: indices of the parts of a sum that processes of their own must compute."""
        self._arguments = spec, timeout_s, limits
        self._most = most
        self._has_spare = False
        self._spare: Seat | None = None
        self._ending: dict[Seat, asyncio.TimerHandle] = {}
        self._no_start_before = 0.0
        self._starter = RewardStarter(*self._arguments)

    async def load(self) -> dict[str, Any]:
        """Waits until the reward is imported. Raises ConfigError if it cannot be."""
        try:
            reply = await self._loaded()
        except ConfigError as error:
            for trace in filter(None, getattr(error, "__notes__", ())):
                log.info("%s", trace)  # the error itself says what and where; commands show it alone
            raise
        if not reply["loaded"]:
            await self._starter.close()
            return reply
        self.others = reply["others"]
        if reply["async"]:
            self._most = 1
        else:
            self._has_spare = reply["can_fork"]
        return reply

    async def _loaded(self) -> dict[str, Any]:
        for _ in range(MAX_KILLED_IMPORTS - 1):
            try:
                return await self._starter.loaded(self.setup_timeout_s)
            except ConfigError as error:
                if not self._starter.was_killed:
                    raise
                log.warning("%s; it is imported again", error)
                self._starter = RewardStarter(*self._arguments)
        return await self._starter.loaded(self.setup_timeout_s)

    async def load_again(self) -> None:
        """After the template was killed, and with it all processes."""
        await self._starter.close()
        self._starter = RewardStarter(*self._arguments)
        await self.load()

    async def close(self) -> None:
        for timer in self._ending.values():
            timer.cancel()
        seats = [*self.inside, *self.outside, *self._ending, *filter(None, [self._spare])]
        for seat in seats:
            seat.dismiss()
        await self._starter.close()
        for seat in seats:
            seat.close()

    @property
    def active(self) -> list[Seat]:
        return [*self.inside, *self.outside]

    @property
    def has_room(self) -> bool:
        return len(self.inside) < self._most and time.monotonic() >= self._no_start_before

    @property
    def has_room_outside(self) -> bool:
        return len(self.outside) < OUTSIDE_FACTOR * self._most

    def may_leave(self, seat: Seat) -> bool:
        """Whether there is room outside for a process of the pool."""
        assert seat.pid is not None
        seat.is_computing = "R" in states_of_tree(seat.pid)
        computing = sum(each.is_computing for each in self.outside)
        return self.has_room_outside and not (seat.is_computing and computing >= COMPUTING_FACTOR * self._most)

    def join(self, owner: SeatOwner) -> Seat:
        """A further process in the pool. Raises StarterLost."""
        seat = self._new(owner)
        self.inside.append(seat)
        return seat

    def join_outside(self, owner: SeatOwner) -> Seat:
        seat = self._new(owner)
        seat.is_outside = True
        self.outside.append(seat)
        return seat

    def _new(self, owner: SeatOwner) -> Seat:
        """The spare one, which is replaced."""
        seat, self._spare = self._spare or Seat(*self._starter.start(), owner), None
        if self._has_spare:
            self._spare = Seat(*self._starter.start(), owner)
        return seat

    def move_outside(self, seat: Seat) -> None:
        self.remove(seat)
        seat.is_outside = True
        self.outside.append(seat)

    def lower(self, seat: Seat) -> None:
        seat.is_lowered = True
        self._starter.lower(seat.number)

    def move_back(self, seat: Seat) -> None:
        """Into the pool, or, if it has no room or is not as good as a new one, to its end."""
        if seat.is_stale or seat.is_lowered or len(self.inside) >= self._most:
            self.leave(seat, "")
            return
        self.remove(seat)
        seat.is_outside = seat.is_computing = False
        self.inside.append(seat)

    def leave(self, seat: Seat, reason: str) -> None:
        """Kills a process with all it has started; without a reason, as it is no longer needed."""
        self.remove(seat)
        seat.end_reason = reason
        self._starter.end(seat.number)
        self._ending[seat] = asyncio.get_running_loop().call_later(KILL_TIMEOUT_S, seat.give_up)

    def remove(self, seat: Seat) -> None:
        """Forgets a process, such as one that has ended."""
        for seats in (self.inside, self.outside):
            if seat in seats:
                seats.remove(seat)
        if self._spare is seat:
            self._spare = None
        if (timer := self._ending.pop(seat, None)) is not None:
            timer.cancel()
        if seat.pid is None:
            self._no_start_before = time.monotonic() + START_DELAY_S
