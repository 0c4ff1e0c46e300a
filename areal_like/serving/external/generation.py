"""Groups become requests to the engine, and its pieces become answers. What is wrong with one group harms no other."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from areal_like.serving.external.base import EngineGone, EngineInfo, GenerateOutput, GenerateRequest, InferenceEngine
from areal_like.serving.external.partial_sample import ABORT, BadOutput, ParsedGroup, PartialSample
from areal_like.serving.external.request_queue import RequestQueue
from areal_like.serving.external.served_weights import ServedWeights, ServerBroken
from areal_like.serving.requests import BadRequest, GroupRequest, Sampling, max_answer_tokens, parse_group

MAX_EMPTY_OUTPUTS = 8
"""So often in a row an engine may end a request without a token, and without being told to."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 2.0
"""Before it is asked again; twice as long each time."""

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class GroupInFlight:
    """A group under way. `ended_by`: why it was ended from outside."""

    group: GroupRequest
    number: int
    attempt: int
    task: "asyncio.Task[Any] | None"
    ended_by: str | None = None


@dataclass
class GenerationCounts:
    """What was generated since this process began."""

    groups: int = 0
    samples: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    continued: int = 0


class Generation:
    """`length_key` is what the configuration calls the longest sequence of this engine."""

    def __init__(
        self, engine: InferenceEngine, info: EngineInfo, queue: RequestQueue, served: ServedWeights, length_key: str
    ) -> None:
        self.counts = GenerationCounts()
        self.on_adapter_released: Callable[[], None] = lambda: None
        """Told whenever a group has given an adapter back."""
        self._engine, self._info, self._queue, self._served = engine, info, queue, served
        self._length_key = length_key
        self._numbers = itertools.count()
        self._names = itertools.count()
        self._in_flight: set[GroupInFlight] = set()
        self._aborts: set[asyncio.Task[None]] = set()

    async def line(self, said: Any, attempt: int) -> dict[str, Any]:
        """What is answered of one group: its samples, or why there are none. Raises Stopped where the engine is gone,
        which says nothing about the group."""
        name = str(said.get("id", "")) if isinstance(said, dict) else ""
        try:
            parsed = self._parse(said)
        except BadRequest as refusal:
            return {"id": name, "error": str(refusal)}
        in_flight = GroupInFlight(parsed.group, next(self._numbers), attempt, asyncio.current_task())
        self._in_flight.add(in_flight)
        deadline = asyncio.timeout(parsed.group.deadline_s)
        try:
            async with deadline:
                answers = await self._answers(parsed, in_flight)
                await self._served.verified()
        except TimeoutError:
            if not deadline.expired():
                raise
            error = f"deadline: the group has no answer after {parsed.group.deadline_s:g} s"
        except asyncio.CancelledError:
            if in_flight.ended_by is None:
                raise
            error = in_flight.ended_by
        except (ValueError, BadOutput) as refusal:
            error = str(refusal)
        except ServerBroken as fault:
            error = f"this server is broken: {fault}"
        except EngineGone:
            raise
        except Exception as fault:
            log.exception("group %s", name)
            error = f"{type(fault).__name__}: {fault}"
        else:
            self.counts.groups += 1
            self.counts.samples += len(answers)
            return {"id": name, "samples": [answer.said() for answer in answers]}
        finally:
            self._in_flight.discard(in_flight)
        return {"id": name, "error": error}

    def end(self, reason: str, is_meant: Callable[[GroupInFlight], bool] = lambda in_flight: True) -> int:
        """Ends groups without answers; returns how many."""
        meant = [in_flight for in_flight in self._in_flight if in_flight.ended_by is None and is_meant(in_flight)]
        for in_flight in meant:
            in_flight.ended_by = reason
            if in_flight.task is not None:
                in_flight.task.cancel()
        return len(meant)

    async def settled(self) -> None:
        """Until the engine was told of all that was given up."""
        if self._aborts:
            await asyncio.wait(self._aborts)

    def _parse(self, said: Any) -> ParsedGroup:
        """Checks what can be known before the engine sees it; raises BadRequest."""
        info = self._info
        group = parse_group(said, info.vocab_size, info.context_length, self._length_key)
        how = group.sampling
        limit = max_answer_tokens(how, len(group.prompt), self._info.context_length, self._length_key)
        asked = said.get("sampling") or {}
        known = [one.name for one in fields(Sampling) if one.name != "max_tokens" and asked.get(one.name) is not None]
        return ParsedGroup(
            group=group,
            sampling={name: getattr(how, name) for name in known},
            limit=limit,
            stops=frozenset((*how.stop_token_ids, *self._info.eos_token_ids)),
        )

    async def _answers(self, parsed: ParsedGroup, in_flight: GroupInFlight) -> list[PartialSample]:
        """All samples in one request; those that were interrupted go on by themselves."""
        adapter = self._served.take()
        try:
            answers = [PartialSample(parsed, number) for number in range(parsed.group.n)]
            outputs, version = await self._ask(parsed.first(self._name(in_flight), adapter), in_flight)
            if len(outputs) != len(answers):
                raise BadOutput(f"the engine gave {len(outputs)} samples where {len(answers)} were asked for")
            self.counts.prompt_tokens += len(parsed.group.prompt)
            for answer, output in zip(answers, outputs, strict=True):
                self._add(answer, output, version, adapter)
            await gather_all(self._finish(answer, in_flight, adapter) for answer in answers if answer.finish == ABORT)
            return answers
        finally:
            self._served.give_back(adapter)
            if adapter is not None:
                self.on_adapter_released()

    async def _finish(self, answer: PartialSample, in_flight: GroupInFlight, adapter: str | None) -> None:
        empty = 0
        while answer.finish == ABORT:
            self.counts.continued += 1
            (output,), version = await self._ask(answer.continuation(self._name(in_flight), adapter), in_flight)
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

    async def _ask(self, asked: GenerateRequest, in_flight: GroupInFlight) -> tuple[list[GenerateOutput], int]:
        """The pieces, and the version of the weights when they were begun."""
        async with self._queue.turn(asked.priority, in_flight.number):
            version = self._served.version_of(asked.adapter)
            try:
                return await self._engine.generate(asked), version
            except asyncio.CancelledError:
                telling = asyncio.create_task(self._abort(asked.id))
                self._aborts.add(telling)
                telling.add_done_callback(self._aborts.discard)
                raise

    async def _abort(self, name: str) -> None:
        """Nobody wants it any more. An engine that is gone has nothing to end."""
        with contextlib.suppress(EngineGone):
            await self._engine.abort([name])

    def _name(self, in_flight: GroupInFlight) -> str:
        return f"g{in_flight.number}-{next(self._names)}"


async def gather_all(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once; when one fails the others are given up."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
