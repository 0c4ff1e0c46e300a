"""Rewards by name: created before the first answer, or refused with one message."""

import asyncio

import pytest

from areal_like.config.problems import ConfigError
from areal_like.process.identity import KEY_VARIABLE
from areal_like.rollout.episodes.rewards.processes import starter
from tests.support.reward_parts import each, open_pool, reward_spec_in


@pytest.fixture
def reward_spec(tmp_path):
    return reward_spec_in(tmp_path)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"name": "Judge", "args": {"worth": 0.25}}, 0.25),
        ({"task": "mine.py:Task", "task_args": {"bonus": 0.5}}, 1.5),
        ({"task": "mine.py:Task", "args": {"scale": 3.0}}, 3.0),
        ({"task": "addition"}, 1.0),
        ({"name": "environment"}, 0.0),
        ({"name": "environment", "args": {"key_variable": "THEIR_KEY"}}, 1.0),
    ],
)
def test_a_reward_is_a_function_a_class_or_the_tasks_own(reward_spec, options, value, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "THEIR_KEY")
    for secret in ("AREAL_LIKE_TOKEN", "ETCDCTL_PASSWORD", "THEIR_KEY"):
        monkeypatch.setenv(secret, "secret")

    async def main():
        async with open_pool(reward_spec(**options)) as pool:
            return await each(pool, "046")

    assert asyncio.run(main()) == [value]


def test_without_a_reward_a_request_for_one_is_an_error(reward_spec, tmp_path):
    async def main():
        async with open_pool(reward_spec()) as pool:
            assert not pool.is_available
            return await each(pool, "046")

    assert "reward.name is null" in asyncio.run(main())[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "nothing"}, "reward.name: {mine} has no nothing"),
        ({"name": "acts", "args": {"scale": 1}}, "reward.args: mine.py:acts takes no argument 'scale'"),
        (
            {"name": "Judge"},
            "reward.args: mine.py:Judge cannot be created with no arguments: missing a required argument",
        ),
        ({"name": "MINE"}, "reward.name: {mine} has no MINE"),
        ({"task": "mine.py:Task", "task_args": {"x": 1}}, "task.args: mine.py:Task cannot be created"),
    ],
)
def test_an_unusable_reward_is_reported_at_once(reward_spec, tmp_path, options, message):
    async def main():
        async with open_pool(reward_spec(**options)):
            pass

    with pytest.raises(ConfigError) as caught:
        asyncio.run(main())
    assert str(caught.value).startswith(message.format(mine=tmp_path / "mine.py"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nothing_of_that_name\n", "line 1: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("import os\nos._exit(5)\n", "the process that imported mine.py:acts ended with exit code 5"),
    ],
)
def test_a_reward_file_that_exits_during_import_gives_the_reason(reward_spec, tmp_path, source, message):
    known = reward_spec("acts")
    (tmp_path / "mine.py").write_text(source)

    async def main():
        async with open_pool(known):
            pass

    with pytest.raises(ConfigError) as caught:
        asyncio.run(main())
    assert str(caught.value).startswith("reward.name: ") and message in str(caught.value)


@pytest.mark.parametrize("kills", [1, 3])
def test_an_import_that_is_killed_from_outside_is_tried_again_a_few_times(reward_spec, tmp_path, kills):
    known = reward_spec("acts")
    tries = tmp_path / "tries"
    killed = f"import os, pathlib, signal\ntries = pathlib.Path({str(tries)!r})\n"
    killed += "with tries.open('a') as file: file.write('x')\n"
    killed += f"if len(tries.read_text()) <= {kills}: os.kill(os.getppid(), signal.SIGKILL); signal.pause()\n"
    (tmp_path / "mine.py").write_text(killed + (tmp_path / "mine.py").read_text())

    async def main():
        async with open_pool(known):
            pass

    if kills == 1:
        asyncio.run(main())
    else:
        with pytest.raises(ConfigError, match=r"the process that imported mine\.py:acts ended with SIGKILL"):
            asyncio.run(main())
    assert tries.read_text() == "x" * min(kills + 1, 3)


def test_an_import_that_is_stopped_is_tried_again(reward_spec, tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "STOPPED_S", 0.2)
    known, tries = reward_spec("acts"), tmp_path / "tries"
    stopped = f"import os, pathlib, signal\ntries = pathlib.Path({str(tries)!r})\n"
    stopped += "with tries.open('a') as file: file.write('x')\n"
    stopped += "if tries.read_text() == 'x': os.kill(os.getpid(), signal.SIGSTOP)\n"
    (tmp_path / "mine.py").write_text(stopped + (tmp_path / "mine.py").read_text())

    async def main():
        async with open_pool(known):
            pass

    asyncio.run(main())
    assert tries.read_text() == "xx"


def test_missing_row_values_are_reported_at_once(reward_spec):
    async def main():
        async with open_pool(reward_spec("acts"), row={"prompt": "a", "solution": "b"}):
            pass

    with pytest.raises(
        ConfigError, match=r"mine\.py:acts needs 'answer' of a row, but rows have prompt, solution"
    ) as e:
        asyncio.run(main())
    assert "; map it: train_dataset.fields.answer=COLUMN, " in str(e.value)
