"""Rewards asked for and had: one child at a time, a deadline for each answer, and another child where one is lost."""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from areal_like.data.user_code import config_error
from areal_like.rollout.episodes.rewards import RewardSpec
from areal_like.rollout.episodes.rewards.base import Reward, RewardError
from areal_like.rollout.episodes.rewards.reward_process import RewardProcess

GRACE_S = 1.0
"""An async reward is cancelled in time by its own process; one that does not let itself be is killed so much later."""
RETRY_DELAY_S = 0.1
"""Before the second try; doubled before each further one."""
CHECK_INTERVAL_S = 1.0
"""How often a child that owes answers is looked after."""
MAX_LOGGED_ERRORS = 100
"""So many different errors are told as warnings, each once."""

log = logging.getLogger(__name__)


@dataclass
class RewardCounts:
    """What went wrong, also where it went well in the end."""

    errors: int = 0
    timeouts: int = 0
    children_lost: int = 0


@dataclass(eq=False)
class _Sample:
    """An answer that waits for its reward."""

    line: bytes
    number: int
    future: "asyncio.Future[Reward]"
    failures: int = 0
    alone: bool = False
    """Others were with it when a child died, so that nobody knows which of them it was."""
    sent_at: float = field(default=0.0)


class RewardPool:
    """`await measure(row, completions)`; the reward itself runs in a child process."""

    def __init__(self, wanted: RewardSpec, timeout_s: float, retries: int, setup_timeout_s: float) -> None:
        """Starts the child; it imports the reward beside whatever comes next here."""
        self.counts = RewardCounts()
        self.needs: list[str] = []
        self.is_there = True
        self._wanted, self._timeout_s, self._retries = wanted, timeout_s, retries
        self._setup_timeout_s = setup_timeout_s
        self._name = wanted.name or f"the reward of {wanted.task}"
        self._numbers = itertools.count()
        self._waiting: deque[_Sample] = deque()
        self._sent: dict[int, _Sample] = {}
        self._is_async = False
        self._progress_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._told: set[str] = set()
        self._replacing: asyncio.Task[None] | None = None
        self._process: RewardProcess | None = None
        self._starting: RewardProcess = RewardProcess(wanted, timeout_s)

    async def ready(self, row: dict[str, Any]) -> None:
        """Once the child has imported the reward; a ConfigError says why it could not, or what a row lacks."""
        await self._load(self._starting)
        missing = [name for name in self.needs if name not in row and name != "prompt"]
        if missing:
            said = f"{self._name} needs {missing[0]!r} of a row, but rows have {', '.join(row)}"
            raise config_error("reward.name", f"{said}; give it a default, or set it in reward.args")

    async def measure(self, row: dict[str, Any], completions: Sequence[str]) -> list[Reward]:
        """One reward for each answer to the row; RewardError where one cannot be had."""
        if not self.is_there:
            raise RewardError("there is no reward: reward.name is null, and the task brings none")
        loop = asyncio.get_running_loop()
        samples = []
        for completion in completions:
            number = next(self._numbers)
            line = {"id": number, "prompt": row["prompt"], "completion": completion, "row": row}
            samples.append(_Sample(orjson.dumps(line) + b"\n", number, loop.create_future()))
        self._waiting.extend(samples)
        self._flush()
        try:
            return await asyncio.gather(*(sample.future for sample in samples))
        finally:
            for sample in samples:
                sample.future.cancel()

    async def close(self) -> None:
        if self._replacing is not None:
            self._replacing.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for process in (self._starting, self._process):
            if process is not None:
                await process.end()

    async def _load(self, process: RewardProcess) -> None:
        """Listens to a new child until it says that its reward is imported."""
        loaded: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def hear(message: dict[str, Any]) -> None:
            if loaded.done():
                self._hear(message)
            else:
                loaded.set_result(message)

        def end() -> None:
            if loaded.done():
                self._lose_child()
            else:
                loaded.set_result({})

        await process.listen(hear, end)
        try:
            said = await asyncio.wait_for(loaded, self._setup_timeout_s)
        except TimeoutError:
            await process.end()
            waited = f"importing {self._name} took longer than {self._setup_timeout_s:g} s (rollout.setup_timeout)"
            raise config_error("reward.name", waited) from None
        if not said:
            how = await process.end(GRACE_S)
            raise config_error("reward.name", f"the process that imported {self._name} ended with {how}")
        if "problem" in said:
            await process.end(GRACE_S)
            if said["trace"]:
                log.error("%s", said["trace"])
            raise config_error(*said["problem"])
        self.is_there = said["loaded"]
        if self.is_there:
            self._is_async, self.needs = said["async"], said["needs"]
            self._process = process
        else:
            await process.end(GRACE_S)

    def _flush(self) -> None:
        """Gives the child what it may be given."""
        if self._process is None:
            if self._replacing is None and self._waiting:
                self._replacing = asyncio.create_task(self._replace(None))
            return
        lines = []
        now = time.monotonic()
        while self._waiting:
            sample = self._waiting[0]
            alone = sample.alone or any(other.alone for other in self._sent.values())
            if not sample.future.done() and alone and self._sent:
                break
            self._waiting.popleft()
            if sample.future.done():
                continue
            if not self._sent:
                self._progress_at = now
            sample.sent_at = now
            self._sent[sample.number] = sample
            lines.append(sample.line)
        if lines:
            self._process.send(b"".join(lines))
            self._look_later(now)

    def _hear(self, message: dict[str, Any]) -> None:
        sample = self._sent.pop(message["id"], None)
        if sample is None:
            return  # a last word of a child that is being replaced: the next one is asked for it
        self._progress_at = time.monotonic()
        if "value" in message:
            if not sample.future.done():
                sample.future.set_result(Reward(message["value"], message["parts"]))
        elif "late" in message:
            self.counts.timeouts += 1
            self._fail(sample, self._late())
        else:
            self._fail(sample, message["error"])
        if self._waiting:
            self._flush()

    def _late(self) -> str:
        return f"it took longer than {self._timeout_s:g} s (reward.timeout_s)"

    def _fail(self, sample: _Sample, reason: str, at_once: bool = False) -> None:
        """Tries again or gives up. A reward that raised may have met something passing; one that costs a child is
        tried again at once: if it is the reward itself, that is known soonest so."""
        self.counts.errors += 1
        sample.failures += 1
        if reason not in self._told and len(self._told) < MAX_LOGGED_ERRORS:
            self._told.add(reason)
            log.warning("%s failed (told once): %s", self._name, reason)
        if sample.future.done():
            return
        if sample.failures > self._retries:
            tries = f"{sample.failures} tries" if sample.failures > 1 else "one try"
            sample.future.set_exception(RewardError(f"{self._name} failed after {tries}: {reason}"))
            return
        if at_once:
            self._waiting.appendleft(sample)
            return
        pause = RETRY_DELAY_S * 2 ** (sample.failures - 1)
        asyncio.get_running_loop().call_later(pause, self._try_again, sample)

    def _try_again(self, sample: _Sample) -> None:
        self._waiting.append(sample)
        self._flush()

    def _look_later(self, now: float) -> None:
        if self._timer is None and self._sent:
            pause = max(0.0, min(self._deadline() - now, CHECK_INTERVAL_S))
            self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _deadline(self) -> float:
        """An async reward has all its answers before it at once, another one after the other."""
        if self._is_async:
            return min(sample.sent_at for sample in self._sent.values()) + self._timeout_s + GRACE_S
        return self._progress_at + self._timeout_s

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        if not self._sent or self._process is None:
            return
        if self._process.how_it_ended() is not None:  # something that it started may hold its end of the wire
            self._lose_child()
        elif now >= self._deadline():
            self.counts.timeouts += 1
            late = next(iter(self._sent.values()))
            self._replace_child([late], self._late(), grace_s=0.0)
        else:
            self._look_later(now)

    def _lose_child(self) -> None:
        """It ended by itself. One at a time, it was the first; together, each is tried alone to find out."""
        owed = list(self._sent.values())
        if self._is_async and len(owed) > 1:
            for sample in owed:
                sample.alone = True
            owed = []
        self._replace_child(owed[:1], None, grace_s=GRACE_S)

    def _replace_child(self, guilty: list[_Sample], reason: str | None, grace_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self.counts.children_lost += 1
        innocent = [sample for sample in self._sent.values() if sample not in guilty]
        self._sent.clear()
        self._waiting.extendleft(reversed(innocent))
        self._replacing = asyncio.create_task(self._replace(process, guilty, reason, grace_s))

    async def _replace(
        self,
        lost: RewardProcess | None,
        guilty: Sequence[_Sample] = (),
        reason: str | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """Ends the old child, and starts another where work waits for it."""
        try:
            if lost is not None:
                how = await lost.end(grace_s)
                for sample in guilty:
                    self._fail(sample, reason or f"it ended its process ({how})", at_once=True)
            if self._waiting:
                self._starting = RewardProcess(self._wanted, self._timeout_s)
                await self._load(self._starting)
        except Exception as fault:  # nobody needs to wait for a reward that cannot be imported any more
            for sample in self._waiting:
                if not sample.future.done():
                    sample.future.set_exception(RewardError(str(fault)))
            self._waiting.clear()
        finally:
            self._replacing = None
        self._flush()
