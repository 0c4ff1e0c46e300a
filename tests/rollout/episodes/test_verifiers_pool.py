"""Which process plays a group while others start, end, or cannot be started: without the package verifiers."""

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from areal_like.config.sections.environments import EnvironmentsConfig
from areal_like.data.user_code import config_error
from areal_like.data.verifiers import environment_process
from areal_like.data.verifiers.environment_process import HostedPackage
from areal_like.process.identity import KEY_VARIABLE
from areal_like.rollout.episodes.text_environments.process import EnvironmentFault
from areal_like.rollout.episodes.verifiers.pool import EnvironmentPool
from areal_like.rollout.episodes.verifiers.seat import EnvironmentSeat

PACKAGE = HostedPackage("verifiers:tests/none", {}, None, ("/nowhere",))


@pytest.mark.parametrize(("args", "is_shown"), [({}, False), ({"helper": {"api_key_var": "THEIR_KEY"}}, True)])
def test_an_environment_sees_the_key_of_attached_servers_only_if_it_names_it(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], is_shown: bool
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "THEIR_KEY")
    monkeypatch.setenv("THEIR_KEY", "secret")
    assert ("THEIR_KEY" in environment_process._variables(PACKAGE._replace(args=args))) == is_shown


class Seat:
    """Plays each group until it is told to end; is closed when `may_close` is set."""

    def __init__(self, number: int) -> None:
        self.number, self.has_ended, self.num_playing = number, False, 0
        self.may_end, self.may_close = asyncio.Event(), asyncio.Event()
        self.may_close.set()

    async def play(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        self.num_playing += 1
        try:
            await self.may_end.wait()
        finally:
            self.num_playing -= 1
        return [{"seat": self.number}]

    async def close(self) -> None:
        await self.may_close.wait()


class Pool(EnvironmentPool):
    """Its processes start when `outcomes` says how."""

    def __init__(self, processes: int) -> None:
        settings: Any = EnvironmentsConfig
        super().__init__(PACKAGE, settings(processes=processes))
        self.started, self.outcomes = list[Seat](), asyncio.Queue[Exception | None]()
        self.counts, self.num_begun = Counter[str](), 0

    async def _new_seat(self) -> EnvironmentSeat:
        self.num_begun += 1
        if (fault := await self.outcomes.get()) is not None:
            raise fault
        self.started.append(Seat(len(self.started)))
        return cast(EnvironmentSeat, self.started[-1])

    def begin(self) -> "asyncio.Task[list[dict[str, Any]]]":
        return asyncio.create_task(self.play({}, 60.0, self.counts, contextlib.nullcontext()))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0)


def run(script: Callable[[Pool], Awaitable[None]], processes: int = 2) -> None:
    async def all_of_it() -> None:
        pool = Pool(processes)
        try:
            await script(pool)
        finally:
            await pool.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(all_of_it())


def test_groups_play_in_the_process_that_there_is_while_another_one_starts() -> None:
    async def script(pool: Pool) -> None:
        groups = [pool.begin() for _ in range(3)]
        pool.outcomes.put_nowait(None)
        await until(lambda: pool.num_begun == 2)
        await until(lambda: pool.started[0].num_playing == 3)
        pool.started[0].may_end.set()
        assert await asyncio.gather(*groups) == [[{"seat": 0}]] * 3
        assert await pool.begin() == [{"seat": 0}]
        assert pool.num_begun == 2 and len(pool.started) == 1, "it still starts"
        pool.outcomes.put_nowait(None)
        await until(lambda: len(pool.started) == 2)
        pool.started[0].may_end.clear()
        later = [pool.begin() for _ in range(2)]
        await until(lambda: [seat.num_playing for seat in pool.started] == [1, 1])
        assert pool.counts == {"environment_starts": 2}
        for seat in pool.started:
            seat.may_end.set()
        await asyncio.gather(*later)

    run(script)


@pytest.mark.parametrize(("processes", "groups", "number"), [(4, 3, 3), (2, 5, 2), (3, 1, 1)])
def test_there_are_as_many_processes_as_groups_at_a_time_up_to_the_limit(
    processes: int, groups: int, number: int
) -> None:
    async def script(pool: Pool) -> None:
        playing = [pool.begin() for _ in range(groups)]
        for _ in range(processes + 1):
            pool.outcomes.put_nowait(None)
        await until(lambda: len(pool.started) == number and sum(each.num_playing for each in pool.started) == groups)
        for _ in range(10):
            await asyncio.sleep(0)
        assert pool.num_begun == number
        for seat in pool.started:
            seat.may_end.set()
        await asyncio.gather(*playing)

    run(script, processes)


def test_a_start_that_fails_is_no_failure_of_groups_that_another_process_plays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(pool: Pool) -> None:
        groups = [pool.begin() for _ in range(2)]
        pool.outcomes.put_nowait(None)
        pool.outcomes.put_nowait(OSError("no more processes"))
        await until(lambda: "no more processes" in caplog.text)
        pool.started[0].may_end.set()
        assert await asyncio.gather(*groups) == [[{"seat": 0}]] * 2

    with caplog.at_level(logging.WARNING):
        run(script)


def test_groups_that_wait_for_the_first_process_share_its_failure_and_the_next_one_begins_again() -> None:
    async def script(pool: Pool) -> None:
        groups = [pool.begin() for _ in range(3)]
        await until(lambda: pool.num_begun == 1)
        groups[2].cancel()
        pool.outcomes.put_nowait(EnvironmentFault("it cannot be loaded"))
        first, second, third = await asyncio.gather(*groups, return_exceptions=True)
        assert isinstance(first, EnvironmentFault) and first is second and isinstance(third, asyncio.CancelledError)
        pool.outcomes.put_nowait(None)
        group = pool.begin()
        await until(lambda: len(pool.started) == 1)
        pool.started[0].may_end.set()
        assert await group == [{"seat": 0}] and pool.num_begun == 2

    run(script)


def test_no_group_waits_until_a_process_that_has_ended_is_closed() -> None:
    async def script(pool: Pool) -> None:
        pool.outcomes.put_nowait(None)
        group = pool.begin()
        await until(lambda: bool(pool.started))
        first = pool.started[0]
        first.may_end.set()
        await group
        first.has_ended = True
        first.may_close.clear()
        pool.outcomes.put_nowait(None)
        group = pool.begin()
        await until(lambda: len(pool.started) == 2)
        pool.started[1].may_end.set()
        assert await group == [{"seat": 1}]
        first.may_close.set()

    run(script)


class Loading:
    """A process that is loaded until it is killed."""

    def __init__(self, package: HostedPackage) -> None:
        self.is_killed, self.is_closed = threading.Event(), False

    def load(self) -> None:
        assert self.is_killed.wait(60)
        raise config_error("task.name", "ended while it was loaded")

    def kill(self) -> None:
        self.is_killed.set()

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_process_that_is_not_loaded_is_closed(monkeypatch: pytest.MonkeyPatch, is_cancelled: bool) -> None:
    made = list[Loading]()

    def start(package: HostedPackage) -> Loading:
        made.append(Loading(package))
        return made[-1]

    async def script() -> None:
        settings: Any = EnvironmentsConfig
        pool = EnvironmentPool(PACKAGE, settings())
        group = asyncio.create_task(pool.play({}, 60.0, Counter(), contextlib.nullcontext()))
        await until(lambda: bool(made))
        if is_cancelled:
            await pool.close()
        else:
            made[0].kill()
        with pytest.raises(asyncio.CancelledError if is_cancelled else EnvironmentFault):
            await group
        assert made[0].is_closed
        await pool.close()

    monkeypatch.setattr("areal_like.rollout.episodes.verifiers.pool.PackageProcess", start)
    asyncio.run(script())
