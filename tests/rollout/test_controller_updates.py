"""Failing weight updates: lost answers, engines that are gone, weights that are sent again.

Controller, HTTP and names are real; servers and trainer are made up, and some of what they answer with them.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_like.process.errors import Failure, HttpError, TimedOut, Unreachable
from areal_like.process.patience import REQUEST_KEY, WaitLimit
from areal_like.rollout.controller import servers
from areal_like.rollout.controller.servers import ServerHandle
from tests.rollout.test_controller_broadcast import Trainer, add, until_served
from tests.rollout.test_controller_broadcast import scenario as sent
from tests.rollout.test_controller_broadcast import short_waits as short_waits
from tests.support.controller_world import PROBE, World, make_run, world_of

pytestmark = pytest.mark.timeout(300)

Command = Callable[..., Any]


def scenario(tmp_path: Path, test: Callable[[World], Any], *overrides: str) -> None:
    async def main() -> None:
        async with world_of(make_run(tmp_path / "run", *overrides)) as world:
            await world.hello()
            await test(world)

    asyncio.run(main())


def between(world: World, what: str, act: Callable[[Command, int], Any]) -> None:
    """`act` wraps the controller's commands of this kind, and gets the number of earlier ones."""
    servers: Any = world.controller.servers
    command, count = servers._command, 0

    async def acting(link: ServerHandle, name: str, *more: Any) -> Any:
        nonlocal count
        if name != what:
            return await command(link, name, *more)
        count += 1
        return await act(lambda: command(link, name, *more), count - 1)

    servers._command = acting


async def served(world: World, version: int) -> None:
    await world.until(lambda: world.controller.server_pool.served_version == version)


def test_a_server_whose_engine_exited_is_awaited_until_replaced(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async def dead(command: Command, before: int) -> Any:
            if before < 6:
                raise HttpError(503, "vLLM does not answer")
            return await command()

        between(world, "update_weights", dead)
        await world.publish(0)
        await served(world, 0)

    scenario(tmp_path, test, "rollout.request_retries=1")


def test_a_server_whose_engine_stays_lost_ends_the_run_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "RETRY_S", 0.02)
    monkeypatch.setattr(servers, "answer_limit", lambda config, *roles: WaitLimit(0.3, REQUEST_KEY))

    async def test(world: World) -> None:
        async def dead(command: Command, before: int) -> Any:
            raise HttpError(503, "vLLM does not answer")

        between(world, "update_weights", dead)
        await world.publish(0)
        with pytest.raises(TimedOut, match=r"rollout.request_timeout: waited .* weights v0 \(vLLM does not answer\)"):
            async with asyncio.timeout(60):
                await world.life

    scenario(tmp_path, test)


def test_an_update_that_arrived_before_its_retry_is_no_refusal(tmp_path: Path) -> None:
    """The first call still runs when its connection is lost, so /health does not show its version yet."""

    async def test(world: World) -> None:
        async def slow(command: Command, before: int) -> Any:
            if before == 0:
                raise Unreachable("somewhere", "the connection was lost")
            await command()
            raise HttpError(409, "version 0 of the weights is stale: version 0 is in use")

        between(world, "update_weights", slow)
        await world.publish(0)
        await served(world, 0)
        assert world.servers[0].log == ["update 0"]

    scenario(tmp_path, test)


def test_weights_that_a_server_has_lost_before_the_swap_are_sent_again(tmp_path: Path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        async def lost(command: Command, before: int) -> Any:
            if before == 0:
                raise HttpError(410, "version 0 of the weights was not staged here, or is not any more")
            return await command()

        between(world, "commit_weights", lost)
        server = await add(world, trainer, 0)
        await trainer.publish(0)
        await until_served(world, 0)
        assert server.log == ["stage 0", "stage 0", "commit 0"]

    sent(tmp_path, test)


def test_a_server_that_repeatedly_loses_weights_ends_the_run(tmp_path: Path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        async def lost(command: Command, before: int) -> Any:
            raise HttpError(410, "version 0 of the weights was not staged here, or is not any more")

        between(world, "commit_weights", lost)
        await add(world, trainer, 0)
        await trainer.publish(0)
        with pytest.raises(Failure, match=r"server/0 cannot serve weights v0: .* was not staged here"):
            async with asyncio.timeout(60):
                await world.life

    sent(tmp_path, test, "rollout.request_retries=2")


@pytest.mark.parametrize(("computes_in", "is_good"), [("bfloat16", True), ("float32", False)])
def test_the_probe_tolerance_depends_on_the_servers_dtype(tmp_path: Path, computes_in: str, is_good: bool) -> None:
    async def test(world: World) -> None:
        world.servers[0].probe = [logprob + 0.01 for logprob in PROBE.logprobs]

        async def telling(command: Command, before: int) -> Any:
            return {**await command(), "dtype": computes_in}

        between(world, "update_weights", telling)
        await world.publish(0)
        if is_good:
            await served(world, 0)
        else:
            with pytest.raises(Failure, match="different models"):
                async with asyncio.timeout(60):
                    await world.life

    other = "float32" if is_good else "bfloat16"
    scenario(tmp_path, test, f"embedded.dtype={other}", f"actor.dtype={other}")


def test_an_adapter_update_pauses_nothing_and_may_wait_for_requests(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        body = {"version": 0, "transport": "adapter", "folder": str(world.publication(0)), "bytes": 0}
        await world.json("/publish", body)
        await served(world, 0)
        assert world.servers[0].log == ["update 0"]

    scenario(tmp_path, test, "rollout.pause_grace_period=0.01")
