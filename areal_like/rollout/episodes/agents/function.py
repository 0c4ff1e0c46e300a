"""An agent that is a Python function: in a thread of its own, so that it may block."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

from areal_like.config.install_command import pip_command
from areal_like.data.user_code import config_error, describe_error
from areal_like.process.errors import InfrastructureError
from areal_like.rollout.episodes.agents.base import AgentError
from areal_like.rollout.episodes.gateway.gateway import Endpoint
from areal_like.rollout.episodes.tools.base import MAX_HANGING

KEY = "agent.function"
CLIENT = "client"
END_LIMIT_S, POLL_S = 5.0, 0.05


class FunctionAgent:
    """Calls it with what it has parameters for. An async function runs in an event loop of its thread, and is cancelled
    at a limit; the thread of another one is given up, and ends when its calls are refused. Where too many do not end,
    no further agent begins."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self._function = name, function
        self._takes = inspect.signature(function).parameters
        self._is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self._hanging: list[threading.Thread] = []
        if CLIENT in self._takes:
            try:
                import openai  # noqa: F401
            except ImportError as missing:
                needs = f"{name} takes a client, which needs the package openai: {pip_command('openai')}"
                raise config_error(KEY, needs) from missing

    async def run(self, row: dict[str, Any], endpoint: Endpoint) -> Any:
        await self._check_hanging()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        cancel: list[Callable[[], None]] = []

        def settle(result: Any, fault: BaseException | None) -> None:
            if done.done():
                return
            if fault is None:
                done.set_result(result)
            else:
                message = f"agent.function: {describe_error(fault)}"
                done.set_exception(AgentError(message))

        def work() -> None:
            result, fault = None, None
            try:
                result = self._call(row, endpoint, cancel)
            except BaseException as raised:  # also SystemExit, and the cancellation at a limit
                fault = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, fault)

        thread = threading.Thread(target=work, daemon=True, name=f"agent {self._name}")
        thread.start()
        try:
            return await done
        finally:
            for each in cancel:
                each()
            if not done.done() or done.cancelled():
                self._hanging.append(thread)

    async def _check_hanging(self) -> None:
        """Waits for those that end, as most do when their calls are refused."""
        until = time.monotonic() + END_LIMIT_S
        while True:
            self._hanging = [each for each in self._hanging if each.is_alive()]
            if len(self._hanging) < MAX_HANGING:
                return
            if time.monotonic() > until:
                break
            await asyncio.sleep(POLL_S)
        message = f"agent.function: {self._name} hangs: {MAX_HANGING} of its threads still run after agent.timeout_s"
        raise InfrastructureError(f"{message}; give what blocks a limit of its own, or make the function async")

    def _call(self, row: dict[str, Any], endpoint: Endpoint, cancel: list[Callable[[], None]]) -> Any:
        given = {"row": row, "base_url": endpoint.base_url, "api_key": endpoint.key}
        known = {name: value for name, value in given.items() if name in self._takes}
        if not self._is_async:
            if CLIENT not in self._takes:
                return self._function(**known)
            from openai import OpenAI

            with OpenAI(base_url=endpoint.base_url, api_key=endpoint.key) as client:
                return self._function(**known, client=client)
        with asyncio.Runner() as runner:
            return runner.run(self._async_call(known, endpoint, cancel))

    async def _async_call(self, known: dict[str, Any], endpoint: Endpoint, cancel: list[Callable[[], None]]) -> Any:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel_soon() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        cancel.append(cancel_soon)
        if CLIENT not in self._takes:
            return await self._function(**known)
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key) as client:
            return await self._function(**known, client=client)
