"""Computes rewards in processes that can be killed at any time, several at once, with a deadline for each answer.

An answer that takes far longer than usual leaves the pool with its process, and another process takes the place: what
hangs waits for its deadline outside. All answers of an async reward are computed in one process. When that dies, or no
longer answers, each of them is sent alone, which finds the cause.
"""

import asyncio
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from areal_like.data.exact_json import dump_json
from areal_like.data.user_code import config_error
from areal_like.process.seeds import derive_seed
from areal_like.rollout.episodes.rewards import RewardSpec
from areal_like.rollout.episodes.rewards.base import Reward, RewardError
from areal_like.rollout.episodes.rewards.limits import NO_LIMITS, RewardLimits
from areal_like.rollout.episodes.rewards.outcomes import RewardCounts, rewards_of
from areal_like.rollout.episodes.rewards.processes.seat import Seat, WaitingAnswer
from areal_like.rollout.episodes.rewards.processes.seats import START_DELAY_S, RewardSeats
from areal_like.rollout.episodes.rewards.processes.starter import StarterLost
from areal_like.rollout.episodes.rewards.processes.usual_time import UsualTime

GRACE_S = 1.0
"""The process cancels an async reward at its deadline; one that is not cancelled is killed this much later."""
RETRY_DELAY_S = 0.1
"""Before the first retry; doubled before each further one."""
CHECK_INTERVAL_S = 0.05
"""Processes are checked no more often."""
MAX_FAILED_STARTS = 3
"""In a row: then the reward is at fault, and not what has killed one of its processes."""
MAX_LOGGED_ERRORS = 100
"""At most this many different errors are logged, each once."""

log = logging.getLogger(__name__)


class RewardPool:
    """`await score(row, completions)`; the reward itself runs in child processes, `processes` at once."""

    def __init__(
        self,
        spec: RewardSpec,
        timeout_s: float,
        retries: int,
        setup_timeout_s: float,
        processes: int = 1,
        limits: RewardLimits = NO_LIMITS,
    ) -> None:
        """Imports the reward in the background."""
        self.counts = RewardCounts()
        self.needs: list[str] = []
        self.is_available = True
        self._spec, self._timeout_s, self._retries = spec, timeout_s, retries
        self._settings = timeout_s, retries, setup_timeout_s, processes, limits
        self._name = spec.title
        self._numbers = itertools.count()
        self._waiting: deque[WaitingAnswer] = deque()
        self.is_async = self.is_split = False
        self._usual = UsualTime()
        self._failed_starts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._logged_errors: set[str] = set()
        self._loading: asyncio.Task[None] | None = None
        self._seats = RewardSeats(spec, timeout_s, limits, setup_timeout_s, processes)

    async def ready(self, row: dict[str, Any]) -> None:
        """Waits until the reward is imported. Raises ConfigError if it cannot be, or if a row lacks a value."""
        reply = await self._seats.load()
        self.is_available = reply["loaded"]
        if not self.is_available:
            return
        self.is_async, self.needs = reply["async"], reply["needs"]
        spec, missing = self._spec, [name for name in self.needs if name not in row and name != "prompt"]
        if missing:
            message = f"{self._name} needs {missing[0]!r} of a row, but rows have {', '.join(row)}"
            args = "args of its part" if spec.parts else "reward.args"
            remedy = f"map it: train_dataset.fields.{missing[0]}=COLUMN, give it a default, or set it in {args}"
            raise config_error(spec.key, f"{message}; {remedy}")
        self._start(1)

    async def score(self, row: dict[str, Any], completions: Sequence[str], seed: int | None = None) -> list[Reward]:
        """One reward for each answer to the row; what is drawn by chance follows from `seed`. Raises RewardError if one
        fails."""
        return [reward for reward in await self.try_score(row, completions, 0, seed) if reward is not None]

    async def try_score(
        self, row: dict[str, Any], completions: Sequence[str], max_failed: int, seed: int | None = None
    ) -> list[Reward | None]:
        """The same, but None where it failed. Raises RewardError as soon as more than `max_failed` of them failed."""
        if not self.is_available:
            raise RewardError("there is no reward: reward.name is null, and the task has none")
        futures = self.send(row, completions, seed)
        try:
            return await rewards_of(futures, max_failed)
        finally:
            for future in futures:
                future.cancel()

    def send(
        self, row: dict[str, Any], completions: Sequence[str], seed: int | None = None, first: int = 0
    ) -> "list[asyncio.Future[Reward]]":
        """The same, without waiting for them. `first`: the index of the first answer, for its seed."""
        assert self.is_split or not self._seats.others, "a sum whose parts wait and compute needs a SumPool"
        loop = asyncio.get_running_loop()
        samples = []
        for index, completion in enumerate(completions, first):
            number = next(self._numbers)
            line = {"id": number, "prompt": row["prompt"], "completion": completion, "row": row}
            line["seed"] = derive_seed(number if seed is None else seed, "answer", index)
            samples.append(WaitingAnswer(dump_json(line) + b"\n", number, loop.create_future()))
        self._waiting.extend(samples)
        self._flush()
        return [sample.future for sample in samples]

    async def close(self) -> None:
        for handle in (self._loading, self._timer, self._restart):
            if handle is not None:
                handle.cancel()
        await self._seats.close()

    # --- sending

    def _flush(self) -> None:
        """Sends waiting answers to idle processes, and starts processes for those that are left."""
        for seat in self._seats.inside:
            self._send(seat, self._next_samples(seat))
        self._start(len(self._waiting))

    def _next_samples(self, seat: Seat) -> list[WaitingAnswer]:
        if seat.pid is None or (seat.sent and not self.is_async):
            return []
        samples: list[WaitingAnswer] = []
        limit = math.inf if self.is_async else self._usual.chunk
        while self._waiting and len(samples) < limit:
            sample = self._waiting[0]
            if not sample.future.done():
                before = [*seat.sent.values(), *samples] if self.is_async else []
                if before and (sample.alone or before[0].alone):
                    break
                samples.append(sample)
            self._waiting.popleft()
        return samples

    def _send(self, seat: Seat, samples: Sequence[WaitingAnswer]) -> None:
        if samples:
            seat.send(samples)
            self._check_before(self._event_at(seat))

    def _start(self, needed: int) -> None:
        """Starts processes so that as many as are needed are about to be ready."""
        needed -= sum(seat.pid is None for seat in self._seats.inside)
        while needed > 0 and self._loading is None and self._seats.has_room:
            needed -= 1
            try:
                seat = self._seats.join(self)
            except StarterLost:
                self._load_again()
                return
            self._check_before(self._event_at(seat))
            self._send(seat, self._next_samples(seat))

    def _retry_outside(self, sample: WaitingAnswer) -> None:
        """An answer that has ended its process may hang or end the next one too."""
        if self._loading is not None or not self._seats.has_room_outside:
            self._waiting.appendleft(sample)
            return
        try:
            seat = self._seats.join_outside(self)
        except StarterLost:
            self._waiting.appendleft(sample)
            self._load_again()
            return
        seat.reserved = [sample]
        self._check_before(self._event_at(seat))
        if seat.pid is not None:
            self._on_ready(seat)

    def _load_again(self) -> None:
        self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        try:
            await self._seats.load_again()
        except Exception as fault:  # the reward can no longer be imported
            self._fail_waiting(str(fault))
        finally:
            self._loading = None
        self._flush()

    # --- messages

    def on_message(self, seat: Seat, message: dict[str, Any]) -> None:
        if "ready" in message:
            seat.pid, seat.progress_at = message["ready"], time.monotonic()
            self._failed_starts = 0
            self._on_ready(seat)
            return
        if message["id"] not in seat.sent:
            return  # another process computes it now
        if "waits" in message:
            seat.sent[message["id"]].due_from = math.inf if message["waits"] else time.monotonic()
            self._check_before(self._event_at(seat))
            return
        sample = seat.sent.pop(message["id"])
        seat.progress_at = time.monotonic()
        if "value" in message:
            if "took_s" in message:
                self._usual.add(message["took_s"])
            if not sample.future.done():
                sample.future.set_result(Reward(message["value"], message["parts"]))
        elif "late" in message:
            self.counts.timeouts += 1
            self._fail(sample, self._late)
        else:
            self.counts.infrastructure += message.get("infrastructure", False)
            self._fail(sample, message["error"])
        if not seat.sent:
            if seat.is_outside:
                self._seats.move_back(seat)
            self._flush()

    def _on_ready(self, seat: Seat) -> None:
        reserved, seat.reserved = seat.reserved, []
        self._send(seat, reserved)
        self._flush()

    def on_end(self, seat: Seat) -> None:
        """A process ended: by itself, by its keeper, or on request. The cause is its first answer; of an async
        reward it is found by sending each one alone."""
        was_ready, samples = seat.pid is not None, list(seat.sent.values())
        self._seats.remove(seat)
        if seat.end_reason != "":
            self.counts.children_lost += 1
        self._waiting.extendleft(reversed(seat.reserved))
        if not was_ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS and not self._seats.inside:
                why = seat.end_reason or seat.how
                self._fail_waiting(f"{self._name} cannot be computed: {why} before its first answer")
            self._restart = asyncio.get_running_loop().call_later(START_DELAY_S, self._flush)
        elif self.is_async and len(samples) > 1:
            for sample in samples:
                sample.alone = True
            self._waiting.extendleft(reversed(samples))
        elif samples:
            self._waiting.extendleft(reversed(samples[1:]))
            self._fail(samples[0], seat.end_reason or seat.how, at_once=True)
        self._flush()

    @property
    def _late(self) -> str:
        return f"it took longer than {self._timeout_s:g} s (reward.timeout_s)"

    def _fail(self, sample: WaitingAnswer, reason: str, at_once: bool = False) -> None:
        """Retries or gives up. A reward that raised is retried after a delay, as the cause may pass; one that ended its
        process is retried at once, to find out soonest whether the reward is the cause."""
        self.counts.errors += 1
        sample.failures += 1
        if reason not in self._logged_errors and len(self._logged_errors) < MAX_LOGGED_ERRORS:
            self._logged_errors.add(reason)
            log.warning("%s failed (logged once): %s", self._name, reason)
        if sample.future.done():
            return
        if sample.failures > self._retries:
            tries = f"{sample.failures} tries" if sample.failures > 1 else "one try"
            sample.future.set_exception(RewardError(f"{self._name} failed after {tries}: {reason}"))
        elif at_once:
            self._retry_outside(sample)
        else:
            delay = RETRY_DELAY_S * 2 ** (sample.failures - 1)
            asyncio.get_running_loop().call_later(delay, self._retry, sample)

    def _retry(self, sample: WaitingAnswer) -> None:
        self._waiting.append(sample)
        self._flush()

    def _fail_waiting(self, reason: str) -> None:
        for sample in self._waiting:
            if not sample.future.done():
                sample.future.set_exception(RewardError(reason))
        self._waiting.clear()

    # --- deadlines

    def _deadline(self, seat: Seat) -> float:
        if self.is_async:
            return min(sample.due_from for sample in seat.sent.values()) + self._timeout_s + GRACE_S
        return seat.progress_at + self._timeout_s

    def _event_at(self, seat: Seat) -> float:
        """When something is to be done about a process unless it answers."""
        if seat.pid is None:
            return seat.progress_at + self._seats.setup_timeout_s
        if not seat.sent:
            return math.inf
        if self.is_async or seat.is_lowered:
            return self._deadline(seat)
        far_s = self._usual.very_far_s if seat.is_outside else self._usual.far_s
        return min(max(seat.progress_at, seat.kept_at) + far_s, self._deadline(seat))

    def _check_before(self, when: float) -> None:
        if when == math.inf:
            return
        now = time.monotonic()
        delay = max(when - now, CHECK_INTERVAL_S)
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + delay:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(delay, self._check)

    def _check(self) -> None:
        self._timer = None
        now = time.monotonic()
        for seat in self._seats.active:
            if now < self._event_at(seat):
                continue
            if seat.pid is None:
                self._seats.leave(seat, f"importing it took longer than {self._seats.setup_timeout_s:g} s")
            elif now >= self._deadline(seat):
                self.counts.timeouts += 1
                if not self.is_async:
                    self._waiting.extendleft(reversed(seat.split()))
                self._seats.leave(seat, self._late)
            elif seat.is_outside:
                self._seats.lower(seat)
            elif self._seats.may_leave(seat):
                self._waiting.extendleft(reversed(seat.split()))
                self._seats.move_outside(seat)
            else:
                seat.kept_at = now
        self._flush()
        self._check_before(min(map(self._event_at, self._seats.active), default=math.inf))
