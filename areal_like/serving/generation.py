"""Turns groups into engine requests and continues interrupted samples; an invalid group affects no other group."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from areal_like.serving.engines.base import EngineGone, GenerateOutput, GenerateRequest, InferenceEngine
from areal_like.serving.partial_sample import ABORT, BadOutput, ParsedGroup, PartialSample
from areal_like.serving.request_queue import RequestQueue
from areal_like.serving.requests import SAMPLING_KEYS, BadRequest, GroupRequest, max_answer_tokens, parse_group
from areal_like.serving.served_weights import ServedWeights

MAX_EMPTY_OUTPUTS = 8
"""Consecutive times that an engine may end a request without a token, and without an abort."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 2.0
"""Pause before the request is repeated, doubled each time."""

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class GroupInFlight:
    """A group being generated. `ended_by`: the reason for which `end` cancelled it."""

    group: GroupRequest
    number: int
    attempt: int
    task: "asyncio.Task[Any] | None"
    ended_by: str | None = None


@dataclass
class GenerationCounts:
    """Totals since this process started."""

    groups: int = 0
    samples: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    continued: int = 0
    expired: int = 0


class Generation:
    def __init__(self, engine: InferenceEngine, queue: RequestQueue, served: ServedWeights) -> None:
        self.counts = GenerationCounts()
        self.asked = self.answered = 0
        """Requests that are in the engine; that it has answered."""
        self.on_adapter_released: Callable[[], None] = lambda: None
        """Called when a group releases its adapter."""
        self._engine, self._info, self._queue, self._served = engine, engine.info, queue, served
        self._attempt = 0
        self._numbers = itertools.count()
        self._names = itertools.count()
        self._in_flight: set[GroupInFlight] = set()
        self._aborts: set[asyncio.Task[None]] = set()

    async def generate_group(self, body: Any, attempt: int) -> dict[str, Any]:
        """The response line of one group: its samples, or an error. Raises EngineGone, for which the group is not the
        reason."""
        name = str(body.get("id", "")) if isinstance(body, dict) else ""
        try:
            parsed = self._parse(body, attempt)
        except BadRequest as refusal:
            return {"id": name, "error": str(refusal)}
        if attempt < self._attempt:
            return {"id": name, "error": self._too_old(attempt)}
        in_flight = GroupInFlight(parsed.group, next(self._numbers), attempt, asyncio.current_task())
        self._in_flight.add(in_flight)
        deadline = asyncio.timeout(parsed.group.deadline_s)
        try:
            async with deadline:
                if parsed.group.order is not None and not parsed.group.n:
                    await self._engine.leave(parsed.group.order)
                    return {"id": name, "samples": []}
                answers = await self._answers(parsed, in_flight)
                await self._served.verified()
        except TimeoutError:
            if not deadline.expired():
                raise
            self.counts.expired += 1
            error = f"deadline: not done within {parsed.group.deadline_s:g} s (deadline_s)"
        except asyncio.CancelledError:
            if in_flight.ended_by is None:
                raise
            error = in_flight.ended_by
        except (ValueError, BadOutput) as refusal:
            error = str(refusal)
        except EngineGone:
            raise
        except Exception as fault:
            log.exception("group %s", name)
            error = f"{type(fault).__name__}: {fault}"
        else:
            self.counts.groups += 1
            self.counts.samples += len(answers)
            return {"id": name, "samples": [answer.to_json() for answer in answers]}
        finally:
            self._in_flight.discard(in_flight)
        return {"id": name, "error": error}

    def start_attempt(self, attempt: int) -> None:
        """Ends groups of earlier attempts."""
        self._attempt = attempt
        for old in {in_flight.attempt for in_flight in self._in_flight if in_flight.attempt < attempt}:
            self.end(self._too_old(old), lambda in_flight, old=old: in_flight.attempt == old)  # type: ignore[misc]

    def _too_old(self, attempt: int) -> str:
        return f"aborted: the group is of attempt {attempt}, and the run is at attempt {self._attempt}"

    def end(self, reason: str, matches: Callable[[GroupInFlight], bool] = lambda in_flight: True) -> int:
        """Ends matching groups without samples; returns how many."""
        ended = [in_flight for in_flight in self._in_flight if in_flight.ended_by is None and matches(in_flight)]
        for in_flight in ended:
            in_flight.ended_by = reason
            if in_flight.task is not None:
                in_flight.task.cancel()
        return len(ended)

    async def aborts_sent(self) -> None:
        """Waits until the engine got the aborts of all cancelled requests."""
        if self._aborts:
            await asyncio.wait(self._aborts)

    def _parse(self, body: Any, attempt: int) -> ParsedGroup:
        """Checks all that is known before the engine sees the group; raises BadRequest."""
        info = self._info
        group = parse_group(body, info.vocab_size, info.context_length, self._info.length_key)
        if group.order is not None:  # another attempt repeats steps
            group = replace(group, order=replace(group.order, key=f"{attempt}/{group.order.key}"))
        sampling = group.sampling
        limit = max_answer_tokens(sampling, len(group.prompt), info.context_length, self._info.length_key)
        given = body.get("sampling") or {}
        names = [name for name in SAMPLING_KEYS if name != "max_tokens" and given.get(name) is not None]
        return ParsedGroup(
            group=group,
            sampling={name: getattr(sampling, name) for name in names},
            limit=limit,
            stops=frozenset((*sampling.stop_token_ids, *info.eos_token_ids)),
        )

    async def _answers(self, parsed: ParsedGroup, in_flight: GroupInFlight) -> list[PartialSample]:
        """All samples in one request; each interrupted one is continued in a request of its own."""
        adapter = self._served.acquire_adapter()
        try:
            answers = [PartialSample(parsed, number) for number in range(parsed.group.n)]
            outputs, version = await self._send(parsed.first_request(self._name(in_flight), adapter), in_flight)
            if len(outputs) != len(answers):
                raise BadOutput(f"the engine gave {len(outputs)} samples instead of {len(answers)}")

            self.counts.prompt_tokens += len(parsed.group.prompt)
            for answer, output in zip(answers, outputs, strict=True):
                self._add(answer, output, version, adapter)
            if interrupted := [answer for answer in answers if answer.finish == ABORT]:
                await gather_all(self._finish(answer, in_flight, adapter) for answer in interrupted)
            return answers
        finally:
            self._served.release_adapter(adapter)
            if adapter is not None:
                self.on_adapter_released()

    async def _finish(self, answer: PartialSample, in_flight: GroupInFlight, adapter: str | None) -> None:
        empty = 0
        while answer.finish == ABORT:
            self.counts.continued += 1
            (output,), version = await self._send(answer.continuation(self._name(in_flight), adapter), in_flight)
            self._add(answer, output, version, adapter)
            if output.token_ids or answer.finish != ABORT:
                empty = 0
            elif self._queue.is_open:
                empty += 1
                if empty == MAX_EMPTY_OUTPUTS:
                    raise BadOutput(f"the engine ended a request {MAX_EMPTY_OUTPUTS} times in a row without a token")
                await asyncio.sleep(min(FIRST_PAUSE_S * 2**empty, MAX_PAUSE_S))

    def _add(self, answer: PartialSample, output: GenerateOutput, version: int, adapter: str | None) -> None:
        answer.add(output, version, override_versions=adapter is not None)
        self.counts.tokens += len(output.token_ids)

    async def _send(self, request: GenerateRequest, in_flight: GroupInFlight) -> tuple[list[GenerateOutput], int]:
        """The outputs, and the version of the weights when the request started."""
        async with self._queue.slot(request.priority, in_flight.number):
            version = self._served.version_of(request.adapter)
            self.asked += 1
            try:
                outputs = await self._engine.generate(request)
                self.answered += 1
                return outputs, version
            except asyncio.CancelledError:
                abort = asyncio.create_task(self._abort(request.id))
                self._aborts.add(abort)
                abort.add_done_callback(self._aborts.discard)
                raise
            finally:
                self.asked -= 1

    async def _abort(self, name: str) -> None:
        with contextlib.suppress(EngineGone):
            await self._engine.abort([name])

    def _name(self, in_flight: GroupInFlight) -> str:
        return f"g{in_flight.number}-{next(self._names)}"


async def gather_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all concurrently; a failure of one cancels the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
