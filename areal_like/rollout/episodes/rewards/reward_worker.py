"""The process that the user's reward runs in, so that it can be stopped whatever it does.

Lines of JSON over a socket of its own: what to import, then one line for each answer, and one back. Stdin is empty, and
what the reward prints goes into the log.
"""

import asyncio
import ctypes
import inspect
import logging
import os
import signal
import socket
import sys
import traceback
from typing import Any

import orjson

from areal_like.config.problems import ConfigError
from areal_like.data.user_code import describe_error
from areal_like.rollout.episodes.rewards import RewardSpec, find_reward
from areal_like.rollout.episodes.rewards.base import parse_reward
from areal_like.rollout.episodes.rewards.call import RewardCall

PR_SET_PDEATHSIG = 1


def main() -> None:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    _die_with(parent)
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as wire:
        lines = wire.makefile("rb")
        said = orjson.loads(lines.readline())
        try:
            call = _load(RewardSpec(**said["wanted"]))
        except ConfigError as error:
            cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
            found = error.problems[0]
            _send(wire, {"problem": [found.key, found.message], "trace": cause})
            return
        if call is None:
            _send(wire, {"loaded": False})
            return
        _send(wire, {"loaded": True, "async": call.is_async, "needs": call.needs})
        if call.is_async:
            asyncio.run(_answer_together(wire, call, said["timeout_s"]))
        else:
            for line in lines:
                _send(wire, _answer(call, orjson.loads(line)))


def _die_with(parent: int) -> None:
    """A worker that is killed takes its child with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _load(wanted: RewardSpec) -> RewardCall | None:
    found = find_reward(wanted)
    if found is None:
        return None
    function, args = found
    return RewardCall(function, wanted.name or f"the reward of {wanted.task}", args)


def _send(wire: socket.socket, message: dict[str, Any]) -> None:
    wire.sendall(orjson.dumps(message) + b"\n")


def _answer(call: RewardCall, sample: dict[str, Any]) -> dict[str, Any]:
    try:
        returned = call(sample["prompt"], sample["completion"], sample["row"])
        if inspect.isawaitable(returned):
            returned = asyncio.run(_wait_for(returned))
        return _measured(sample["id"], returned)
    except BaseException as fault:
        return _failed(sample["id"], fault)


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


async def _answer_together(wire: socket.socket, call: RewardCall, timeout_s: float) -> None:
    """An async reward waits for others most of its time, so all answers that are there are judged at once."""
    reader, writer = await asyncio.open_connection(sock=wire, limit=1 << 30)
    running: set[asyncio.Task[None]] = set()

    async def judge(sample: dict[str, Any]) -> None:
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                message = _measured(sample["id"], await call(sample["prompt"], sample["completion"], sample["row"]))
        except BaseException as fault:
            late = deadline.expired() and isinstance(fault, TimeoutError)
            message = {"id": sample["id"], "late": True} if late else _failed(sample["id"], fault)
        writer.write(orjson.dumps(message) + b"\n")

    while line := await reader.readline():
        task = asyncio.create_task(judge(orjson.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


def _measured(number: int, returned: Any) -> dict[str, Any]:
    try:
        reward = parse_reward(returned)
    except (ValueError, OverflowError) as fault:
        return {"id": number, "error": str(fault)}
    return {"id": number, "value": reward.value, "parts": reward.parts}


def _failed(number: int, fault: BaseException) -> dict[str, Any]:
    if isinstance(fault, SystemExit):
        return {"id": number, "error": f"it called sys.exit({'' if fault.code is None else repr(fault.code)})"}
    return {"id": number, "error": describe_error(fault)}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    main()
