"""Child process in which a reward runs, so that it can be killed at any time.

It exchanges JSON lines over a socket: first the reward to import, then one line per answer in each direction. Stdin is
empty, and what the reward prints goes to the log. A keeper is its parent: what a reward starts ends with it.
"""

import asyncio
import inspect
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

import orjson

from areal_like.config.problems import ConfigError
from areal_like.data.user_code import describe_error
from areal_like.process.errors import InfrastructureError
from areal_like.process.keeper import fork_keeper
from areal_like.rollout.episodes.rewards import RewardSpec, load_reward
from areal_like.rollout.episodes.rewards.base import parse_reward

Caller = Callable[[Any, str, dict[str, Any]], Any]


def main() -> None:
    descriptor, worker = int(sys.argv[1]), int(sys.argv[2])
    fork_keeper(worker, close=[descriptor])
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as wire:
        lines = wire.makefile("rb")
        request = orjson.loads(lines.readline())
        try:
            os.environ.update(request["secrets"])
            call = load_reward(RewardSpec(**request["reward"]))
            for name in request["secrets"]:  # whoever needs them has read them
                del os.environ[name]
        except ConfigError as error:
            cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
            first = error.problems[0]
            _send(wire, {"problem": [first.key, first.message], "trace": cause})
            return
        if call is None:
            _send(wire, {"loaded": False})
            return
        _send(wire, {"loaded": True, "async": call.is_async, "needs": call.needs})
        if call.is_async:
            asyncio.run(_answer_concurrently(wire, call, request["timeout_s"]))
        else:
            for line in lines:
                _send(wire, _answer(call, orjson.loads(line)))


def _send(wire: socket.socket, message: dict[str, Any]) -> None:
    wire.sendall(orjson.dumps(message) + b"\n")


def _answer(call: Caller, sample: dict[str, Any]) -> dict[str, Any]:
    try:
        returned = call(sample["prompt"], sample["completion"], sample["row"])
        if inspect.isawaitable(returned):
            returned = asyncio.run(_wait_for(returned))
        return _result(sample["id"], returned)
    except BaseException as fault:
        return _failed(sample["id"], fault)


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


async def _answer_concurrently(wire: socket.socket, call: Caller, timeout_s: float) -> None:
    """Runs an async reward for all answers concurrently: it mostly waits for other services."""
    reader, writer = await asyncio.open_connection(sock=wire, limit=1 << 30)
    running: set[asyncio.Task[None]] = set()

    async def answer(sample: dict[str, Any]) -> None:
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                message = _result(sample["id"], await call(sample["prompt"], sample["completion"], sample["row"]))
        except BaseException as fault:
            late = deadline.expired() and isinstance(fault, TimeoutError)
            message = {"id": sample["id"], "late": True} if late else _failed(sample["id"], fault)
        writer.write(orjson.dumps(message) + b"\n")

    while line := await reader.readline():
        task = asyncio.create_task(answer(orjson.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


def _result(number: int, returned: Any) -> dict[str, Any]:
    try:
        reward = parse_reward(returned)
    except (ValueError, OverflowError) as fault:
        return {"id": number, "error": str(fault)}
    return {"id": number, "value": reward.value, "parts": reward.parts}


def _failed(number: int, fault: BaseException) -> dict[str, Any]:
    if isinstance(fault, SystemExit):
        return {"id": number, "error": f"it called sys.exit({'' if fault.code is None else repr(fault.code)})"}
    if isinstance(fault, InfrastructureError):
        return {"id": number, "error": str(fault) or type(fault).__name__, "infrastructure": True}
    return {"id": number, "error": describe_error(fault)}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    main()
