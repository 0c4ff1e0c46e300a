"""Computes rewards in a child process, with a deadline for each answer; a child that is lost is replaced."""

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
"""The child cancels an async reward at its deadline; one that is not cancelled is killed this much later."""
RETRY_DELAY_S = 0.1
"""Before the first retry; doubled before each further one."""
CHECK_INTERVAL_S = 1.0
"""How often a busy child is checked."""
MAX_LOGGED_ERRORS = 100
"""At most this many different errors are logged, each once."""

log = logging.getLogger(__name__)


@dataclass
class RewardCounts:
    """Failures, including those where a retry succeeded."""

    errors: int = 0
    timeouts: int = 0
    children_lost: int = 0
    infrastructure: int = 0
    """Of them those that a reward, or else a workflow, blames on infrastructure."""


@dataclass(eq=False)
class _Sample:
    """An answer that waits for its reward."""

    line: bytes
    number: int
    future: "asyncio.Future[Reward]"
    failures: int = 0
    alone: bool = False
    """It was in a child that died, with others: it is sent alone to find out which one was the cause."""
    sent_at: float = field(default=0.0)


class RewardPool:
    """`await score(row, completions)`; the reward itself runs in a child process."""

    def __init__(self, spec: RewardSpec, timeout_s: float, retries: int, setup_timeout_s: float) -> None:
        """Starts the child, which imports the reward in the background."""
        self.counts = RewardCounts()
        self.needs: list[str] = []
        self.is_available = True
        self._spec, self._timeout_s, self._retries = spec, timeout_s, retries
        self._setup_timeout_s = setup_timeout_s
        self._name = spec.title
        self._numbers = itertools.count()
        self._waiting: deque[_Sample] = deque()
        self._sent: dict[int, _Sample] = {}
        self._is_async = False
        self._progress_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._logged_errors: set[str] = set()
        self._replacing: asyncio.Task[None] | None = None
        self._process: RewardProcess | None = None
        self._starting: RewardProcess = RewardProcess(spec, timeout_s)

    async def ready(self, row: dict[str, Any]) -> None:
        """Waits until the child has imported the reward. Raises ConfigError if it cannot, or if a row lacks a value."""
        await self._load(self._starting)
        missing = [name for name in self.needs if name not in row and name != "prompt"]
        if missing:
            message = f"{self._name} needs {missing[0]!r} of a row, but rows have {', '.join(row)}"
            args = "args of its part" if self._spec.parts else "reward.args"
            remedy = f"map it: train_dataset.fields.{missing[0]}=COLUMN, give it a default, or set it in {args}"
            raise config_error(self._spec.key, f"{message}; {remedy}")

    async def score(self, row: dict[str, Any], completions: Sequence[str]) -> list[Reward]:
        """One reward for each answer to the row. Raises RewardError if one fails."""
        return [reward for reward in await self.try_score(row, completions, 0) if reward is not None]

    async def try_score(self, row: dict[str, Any], completions: Sequence[str], max_failed: int) -> list[Reward | None]:
        """The same, but None where it failed. Raises RewardError as soon as more than `max_failed` of them failed."""
        if not self.is_available:
            raise RewardError("there is no reward: reward.name is null, and the task has none")
        loop = asyncio.get_running_loop()
        samples = []
        for completion in completions:
            number = next(self._numbers)
            line = {"id": number, "prompt": row["prompt"], "completion": completion, "row": row}
            samples.append(_Sample(orjson.dumps(line) + b"\n", number, loop.create_future()))
        self._waiting.extend(samples)
        self._flush()
        try:
            return await _results([sample.future for sample in samples], max_failed)
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
        """Waits for the first message of a new child: that its reward is imported."""
        loaded: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def on_message(message: dict[str, Any]) -> None:
            if loaded.done():
                self._receive(message)
            else:
                loaded.set_result(message)

        def on_end() -> None:
            if loaded.done():
                self._lose_child()
            else:
                loaded.set_result({})

        await process.listen(on_message, on_end)
        try:
            reply = await asyncio.wait_for(loaded, self._setup_timeout_s)
        except TimeoutError:
            await process.end()
            message = f"importing {self._name} took longer than {self._setup_timeout_s:g} s (rollout.setup_timeout)"
            raise config_error(self._spec.key, message) from None
        if not reply:
            how = await process.end(GRACE_S)
            raise config_error(self._spec.key, f"the process that imported {self._name} ended with {how}")
        if "problem" in reply:
            await process.end(GRACE_S)
            if reply["trace"]:
                log.error("%s", reply["trace"])
            raise config_error(*reply["problem"])
        self.is_available = reply["loaded"]
        if self.is_available:
            self._is_async, self.needs = reply["async"], reply["needs"]
            self._process = process
        else:
            await process.end(GRACE_S)

    def _flush(self) -> None:
        """Sends waiting samples to the child."""
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
            self._check_later(now)

    def _receive(self, message: dict[str, Any]) -> None:
        sample = self._sent.pop(message["id"], None)
        if sample is None:
            return  # from a child that is being replaced: the next child gets the sample
        self._progress_at = time.monotonic()
        if "value" in message:
            if not sample.future.done():
                sample.future.set_result(Reward(message["value"], message["parts"]))
        elif "late" in message:
            self.counts.timeouts += 1
            self._fail(sample, self._late())
        else:
            self.counts.infrastructure += message.get("infrastructure", False)
            self._fail(sample, message["error"])
        if self._waiting:
            self._flush()

    def _late(self) -> str:
        return f"it took longer than {self._timeout_s:g} s (reward.timeout_s)"

    def _fail(self, sample: _Sample, reason: str, at_once: bool = False) -> None:
        """Retries or gives up. A reward that raised is retried after a delay, as the cause may pass; one that ended its
        child is retried at once, to find out soonest whether the reward is the cause."""
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
            return
        if at_once:
            self._waiting.appendleft(sample)
            return
        delay = RETRY_DELAY_S * 2 ** (sample.failures - 1)
        asyncio.get_running_loop().call_later(delay, self._retry, sample)

    def _retry(self, sample: _Sample) -> None:
        self._waiting.append(sample)
        self._flush()

    def _check_later(self, now: float) -> None:
        if self._timer is None and self._sent:
            delay = max(0.0, min(self._deadline() - now, CHECK_INTERVAL_S))
            self._timer = asyncio.get_running_loop().call_later(delay, self._check)

    def _deadline(self) -> float:
        """An async reward gets all answers at once; another reward gets one at a time."""
        if self._is_async:
            return min(sample.sent_at for sample in self._sent.values()) + self._timeout_s + GRACE_S
        return self._progress_at + self._timeout_s

    def _check(self) -> None:
        self._timer = None
        now = time.monotonic()
        if not self._sent or self._process is None:
            return
        if self._process.exit_text() is not None:  # a process that it started may keep the socket open
            self._lose_child()
        elif now >= self._deadline():
            self.counts.timeouts += 1
            late = next(iter(self._sent.values()))
            self._replace_child([late], self._late(), grace_s=0.0)
        else:
            self._check_later(now)

    def _lose_child(self) -> None:
        """The child ended. The cause is the first sample, or, of an async reward, found by sending each one alone."""
        suspects = list(self._sent.values())
        if self._is_async and len(suspects) > 1:
            for sample in suspects:
                sample.alone = True
            suspects = []
        self._replace_child(suspects[:1], None, grace_s=GRACE_S)

    def _replace_child(self, cause: list[_Sample], reason: str | None, grace_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self.counts.children_lost += 1
        others = [sample for sample in self._sent.values() if sample not in cause]
        self._sent.clear()
        self._waiting.extendleft(reversed(others))
        self._replacing = asyncio.create_task(self._replace(process, cause, reason, grace_s))

    async def _replace(
        self,
        lost: RewardProcess | None,
        cause: Sequence[_Sample] = (),
        reason: str | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """Ends the old child, and starts a new one if samples wait."""
        try:
            if lost is not None:
                how = await lost.end(grace_s)
                for sample in cause:
                    self._fail(sample, reason or f"it ended its process ({how})", at_once=True)
            if self._waiting:
                self._starting = RewardProcess(self._spec, self._timeout_s)
                await self._load(self._starting)
        except Exception as fault:  # the reward can no longer be imported: fail all waiting samples
            for sample in self._waiting:
                if not sample.future.done():
                    sample.future.set_exception(RewardError(str(fault)))
            self._waiting.clear()
        finally:
            self._replacing = None
        self._flush()


async def _results(futures: "Sequence[asyncio.Future[Reward]]", max_failed: int) -> list[Reward | None]:
    waiting = set(futures)
    while waiting:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
        errors = [fault for each in futures if each.done() and (fault := each.exception()) is not None]
        if len(errors) > max_failed:
            raise errors[0]
    return [None if each.exception() is not None else each.result() for each in futures]
