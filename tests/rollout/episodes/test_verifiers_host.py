"""What plays environments within their process, without the package verifiers."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from areal_like.data.verifiers.environment_process import HostedPackage, PackageProcess, loaded_process
from areal_like.data.verifiers.host import classic
from areal_like.data.verifiers.host.classic import ClassicEnvironment
from areal_like.data.verifiers.host.taskset import TasksetEnvironment
from areal_like.process.process_tree import descendants_of, process_info
from areal_like.rollout.episodes.text_environments.process import EnvironmentFault
from areal_like.rollout.episodes.verifiers.seat import EnvironmentSeat

GROUP = {"model": "any", "sampling": {}, "at_once": 3}


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


def test_a_keeper_that_is_stopped_goes_on_to_end_its_process(tmp_path: Path) -> None:
    process = PackageProcess(HostedPackage("verifiers:tests/any", {}, None, (str(tmp_path), str(tmp_path))))
    keeper = process._process
    while not (kept := descendants_of(keeper.pid)):
        time.sleep(0.01)
    os.kill(keeper.pid, signal.SIGSTOP)
    process.kill()
    code = keeper.wait(60.0)
    process.close()
    assert code is not None and process_info(kept[0].pid) is None


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


def test_an_agent_that_raises_is_an_error_of_its_episode_and_the_others_are_played_to_their_end() -> None:
    played = taskset(Serving())
    ended = list[int]()

    async def play_one(task: int, policy: int, model: str, sampling: object) -> dict[str, float]:
        if policy == 0:
            raise OSError("no such program")
        await asyncio.sleep(0)
        ended.append(policy)
        return {"reward": 1.0}

    async def script() -> list[dict[str, object]]:
        played._environment.num_begun = 1
        played._environment.may_go_on.set()
        results = await played.play({**GROUP, "row": {"task": 0}, "policies": [0, 1, 2]})
        await played.close()
        return results

    played._v1, played._play_one = SimpleNamespace(Sampling=dict), play_one  # type: ignore[method-assign, assignment]
    assert asyncio.run(script()) == [{"error": "OSError: no such program"}, {"reward": 1.0}, {"reward": 1.0}]
    assert ended == [1, 2]


class Rubric:
    """Refuses to clean up the first episode."""

    def __init__(self) -> None:
        self.funcs = list[Callable[..., float]]()
        self.cleaned = list[int]()

    async def score_group(self, states: list[dict[str, float]]) -> None:
        for state in states:
            state["reward"] = 1.0

    async def cleanup(self, state: dict[str, int]) -> None:
        self.cleaned.append(state["number"])
        if state["number"] == 0:
            raise KeyError("it is gone")


class Classic:
    def __init__(self) -> None:
        self.rubric, self.sampling_args, self.num_begun = Rubric(), dict[str, object](), 0
        self.hang = asyncio.Event()

    async def init_state(self) -> dict[str, int]:
        self.num_begun += 1
        return {"number": self.num_begun - 1}

    async def rollout(self, row: dict[str, str], *more: object) -> dict[str, int]:
        state = await self.init_state()
        if row["prompt"] == "hang" and state["number"] == 1:
            await self.hang.wait()
        if row["prompt"] == "raise" and state["number"] == 1:
            raise KeyError("no such guess")
        return state


class Client:
    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("prompt", ["play", "raise", "hang"])
def test_each_episode_is_cleaned_up_whatever_ends_it_and_a_cleanup_that_raises_costs_no_scores(
    monkeypatch: pytest.MonkeyPatch, prompt: str
) -> None:
    clients = [Client() for _ in range(3)]
    left = iter(clients)
    monkeypatch.setattr(classic, "_client", lambda policy, is_text: next(left))

    async def script() -> tuple[Classic, list[dict[str, object]]]:
        own = Classic()
        environment = ClassicEnvironment(SimpleNamespace(load_environment=lambda: own), {})
        request = {**GROUP, "row": {"prompt": prompt}, "policies": [{}, {}, {}]}
        playing = asyncio.create_task(environment.play(request))
        if prompt != "hang":
            return own, await playing
        while own.num_begun < 3:
            await asyncio.sleep(0)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        return own, []

    own, results = asyncio.run(script())
    assert own.rubric.cleaned == [0, 1, 2] and all(each.is_closed for each in clients)
    rewards = [each.get("reward") for each in results]
    assert rewards == {"play": [1.0] * 3, "raise": [1.0, None, 1.0], "hang": []}[prompt]


HUGE = 123456789012345678901234567890
COUNTING = """
from types import SimpleNamespace

class Counting(SimpleNamespace):
    def get_dataset(self):
        return [{"prompt": "1+1=", "number": self.number + 1}]

    def _route_child_input(self, row):
        raise ValueError(row["number"] + 1)

def load_environment(number):
    return Counting(number=number, rubric=SimpleNamespace(funcs=[]), init_state=len)
"""


def test_integers_of_any_size_reach_an_environment_and_its_rows_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    process = loaded_process(HostedPackage("verifiers:counting", {"number": HUGE}, None, (str(tmp_path),)))

    async def play(row: dict[str, object]) -> None:
        seat = EnvironmentSeat(process, None)
        await seat.open()
        with pytest.raises(EnvironmentFault, match=str(HUGE + 2)):
            await seat.play({"row": row, "policies": []})
        await seat.close()

    (row,) = process.rows(held_out=False)
    assert row["number"] == HUGE + 1
    asyncio.run(play(row))


class Counting:
    """Notes how many episodes are played at a time."""

    def __init__(self) -> None:
        self.num_playing, self.seen = 0, list[int]()

    async def play(self) -> None:
        self.num_playing += 1
        self.seen.append(self.num_playing)
        await asyncio.sleep(0)
        self.num_playing -= 1


@pytest.mark.parametrize("is_taskset", [False, True])
def test_a_group_plays_at_most_as_many_episodes_at_a_time_as_it_has_places(
    monkeypatch: pytest.MonkeyPatch, is_taskset: bool
) -> None:
    monkeypatch.setattr(classic, "_client", lambda policy, is_text: Client())
    counting = Counting()

    async def play_one(task: int, policy: int, model: str, sampling: object) -> dict[str, float]:
        await counting.play()
        return {"reward": 1.0}

    class Counted(Classic):
        async def rollout(self, row: dict[str, str], *more: object) -> dict[str, int]:
            await counting.play()
            return await super().rollout(row)

    async def script() -> list[dict[str, object]]:
        request = {**GROUP, "at_once": 2, "row": {"task": 0, "prompt": "play"}, "policies": [{} for _ in range(5)]}
        if not is_taskset:
            return await ClassicEnvironment(SimpleNamespace(load_environment=Counted), {}).play(request)
        played = taskset(Serving())
        played._environment.num_begun = 1
        played._environment.may_go_on.set()
        played._v1, played._play_one = SimpleNamespace(Sampling=dict), play_one  # type: ignore[method-assign, assignment]
        results = await played.play(request)
        await played.close()
        return results

    assert [each["reward"] for each in asyncio.run(script())] == [1.0] * 5
    assert len(counting.seen) == 5 and max(counting.seen) == 2


def test_a_verifiers_without_the_members_that_are_used_is_refused_by_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "0.9.9")
    group = SimpleNamespace(env_map={"sums": SimpleNamespace(rubric=None)})
    needs = "verifiers 0.9.9 is not supported: its SimpleNamespace has no _route_child_input"
    with pytest.raises(RuntimeError, match=f"{needs}; the versions 0.1.14 and 0.4.0 are tested"):
        ClassicEnvironment(SimpleNamespace(load_environment=lambda: group), {})
