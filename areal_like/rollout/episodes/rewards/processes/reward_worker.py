"""The process in which a reward runs, so that it can be ended at any time, and its keeper.

It exchanges JSON lines over a socket: one per answer in each direction. The keeper, its parent, checks the limits,
passes on what it prints, and sends the last line: how it ended.
"""

import asyncio
import inspect
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import orjson

from areal_like.data.exact_json import parse_json
from areal_like.data.user_code import describe_error
from areal_like.process.errors import InfrastructureError
from areal_like.process.keeper import fork_keeper
from areal_like.process.plain_json import plain_json
from areal_like.rollout.episodes.rewards.base import RewardCall, parse_reward
from areal_like.rollout.episodes.rewards.deadline import Deadline
from areal_like.rollout.episodes.rewards.limits import AnswerCount, RewardLimits, UsageWatch
from areal_like.rollout.episodes.rewards.processes.bounded_output import BoundedOutput
from areal_like.rollout.episodes.rewards.weighted_sum import WeightedSum

LAST_LINE_TIMEOUT_S = 1.0

LoadedReward = RewardCall | WeightedSum


class RewardWatch:
    """What the keeper of a reward does."""

    def __init__(self, wire: socket.socket, output: int, limits: RewardLimits, answers: AnswerCount) -> None:
        self._wire, self._output = wire, BoundedOutput(output)
        self._usage = UsageWatch(limits, answers)
        self._problem: str | None = None

    def start(self) -> None:
        self._output.start()

    def is_exceeded(self) -> bool:
        self._problem = self._usage.problem()
        return self._problem is not None

    def end(self, code: int) -> None:
        self._output.drain()
        line = orjson.dumps({"ended": code, "problem": self._problem})
        with suppress(OSError):  # the worker has closed it, or reads no more
            self._wire.settimeout(LAST_LINE_TIMEOUT_S)
            self._wire.sendall(b"\n" + line + b"\n")


def run_reward(
    wire: socket.socket, owner: int, load: Callable[[], LoadedReward], timeout_s: float, limits: RewardLimits
) -> NoReturn:
    """Answers until the worker closes the wire. This process becomes the keeper; its parent is `owner`."""
    os.setsid()
    answers = AnswerCount()
    output, printed = os.pipe()
    fork_keeper(owner, close=[printed], watch=RewardWatch(wire, output, limits, answers))
    os.setsid()
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    for descriptor in (output, printed):
        os.close(descriptor)
    _seed_randomness()
    limits.apply()
    call = load()
    call.prepare()
    _send(wire, {"ready": os.getpid()})
    if call.is_async:
        asyncio.run(_answer_concurrently(wire, call, timeout_s, limits, answers))
    else:
        for line in wire.makefile("rb"):
            answers.increase()
            began = time.perf_counter()
            message = _answer(call, parse_json(line), limits)
            _send(wire, {**message, "took_s": time.perf_counter() - began})
    sys.stdout.flush()
    os._exit(0)


def _seed_randomness() -> None:
    """Forks of one process would draw the same numbers. Python's own generator is seeded by the fork."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def _send(wire: socket.socket, message: dict[str, Any]) -> None:
    wire.sendall(_line(message))


def _line(message: dict[str, Any]) -> bytes:
    """An error or the name of a part may have what a model wrote, such as half of a surrogate pair."""
    return orjson.dumps(plain_json(message)) + b"\n"


def _answer(call: LoadedReward, sample: dict[str, Any], limits: RewardLimits) -> dict[str, Any]:
    try:
        returned = call(sample["prompt"], sample["completion"], sample["row"], sample["seed"])
        if inspect.isawaitable(returned):
            returned = asyncio.run(_wait_for(returned))
        return _result(sample["id"], returned)
    except BaseException as fault:
        return _failed(sample["id"], fault, limits)


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


async def _answer_concurrently(
    wire: socket.socket, call: LoadedReward, timeout_s: float, limits: RewardLimits, answers: AnswerCount
) -> None:
    """Runs an async reward for all answers concurrently: it mostly waits for other services."""
    reader, writer = await asyncio.open_connection(sock=wire, limit=1 << 30)
    running: set[asyncio.Task[None]] = set()

    def send(message: dict[str, Any]) -> None:
        writer.write(_line(message))

    async def answer(sample: dict[str, Any]) -> None:
        deadline = Deadline(timeout_s, lambda waits: send({"id": sample["id"], "waits": waits}))
        try:
            async with deadline:
                message = _result(
                    sample["id"], await call(sample["prompt"], sample["completion"], sample["row"], sample["seed"])
                )
        except BaseException as fault:
            late = deadline.has_expired and isinstance(fault, TimeoutError)
            message = {"id": sample["id"], "late": True} if late else _failed(sample["id"], fault, limits)
        send(message)

    while line := await reader.readline():
        answers.increase()
        task = asyncio.create_task(answer(parse_json(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await call.aclose()


def _result(number: int, returned: Any) -> dict[str, Any]:
    try:
        reward = parse_reward(returned)
    except (ValueError, OverflowError) as fault:
        return {"id": number, "error": str(fault)}
    return {"id": number, "value": reward.value, "parts": reward.parts}


def _failed(number: int, fault: BaseException, limits: RewardLimits) -> dict[str, Any]:
    if isinstance(fault, SystemExit):
        return {"id": number, "error": f"it called sys.exit({'' if fault.code is None else repr(fault.code)})"}
    if isinstance(fault, InfrastructureError):
        return {"id": number, "error": str(fault) or type(fault).__name__, "infrastructure": True}
    return {"id": number, "error": describe_error(fault) + limits.hint(fault)}
