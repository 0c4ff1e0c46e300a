"""What plays environments within their process, without the package verifiers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from areal_like.data.verifiers.host.classic import ClassicEnvironment
from areal_like.data.verifiers.host.taskset import TasksetEnvironment


class Serving:
    """Of a taskset: fails the first time, as when its port is taken."""

    def __init__(self) -> None:
        self.num_begun, self.may_go_on = 0, asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.num_begun += 1
        await self.may_go_on.wait()
        if self.num_begun == 1:
            raise OSError("the port is taken")
        yield


def taskset(environment: Serving) -> TasksetEnvironment:
    made = TasksetEnvironment.__new__(TasksetEnvironment)
    made._environment, made._serving = environment, None
    made._is_up, made._is_over = asyncio.Event(), asyncio.Event()
    return made


def test_all_groups_that_wait_for_a_server_that_fails_get_its_error_and_the_next_one_starts_it_again() -> None:
    async def script() -> None:
        environment = Serving()
        played = taskset(environment)
        waiting = [asyncio.create_task(played._serve()) for _ in range(3)]
        await asyncio.sleep(0)
        environment.may_go_on.set()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(each) for each in ended] == ["the port is taken"] * 3
        await played._serve()
        assert environment.num_begun == 2
        await played.close()

    asyncio.run(script())


def test_a_group_that_is_cancelled_while_it_waits_leaves_nothing_and_the_server_to_the_others() -> None:
    async def script() -> None:
        environment = Serving()
        environment.num_begun = 1
        played = taskset(environment)
        one, other = (asyncio.create_task(played._serve()) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        environment.may_go_on.set()
        await other
        assert one.cancelled() and environment.num_begun == 2
        await played.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(script())


def test_a_verifiers_without_the_members_that_are_used_is_refused_by_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "0.9.9")
    group = SimpleNamespace(env_map={"sums": SimpleNamespace(rubric=None)})
    needs = "verifiers 0.9.9 is not supported: its SimpleNamespace has no _route_child_input"
    with pytest.raises(RuntimeError, match=f"{needs}; the versions 0.1.14 and 0.4.0 are tested"):
        ClassicEnvironment(SimpleNamespace(load_environment=lambda: group), {})
