"""Games of the real packages gymnasium, textarena and OpenEnv, in processes with a Python of their own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from areal_like.data.user_code import SearchFolders
from areal_like.rollout.episodes.text_environments.pool import EnvironmentPools
from areal_like.rollout.episodes.text_environments.process import InstanceSpec

pytestmark = pytest.mark.slow

VARIABLE = "AREAL_LIKE_TEXT_ENVIRONMENTS_PYTHON"
SERVER = Path(__file__).parents[2] / "text_packages" / "openenv_server.py"


@pytest.fixture
def python() -> str:
    """The Python with the packages. Where there is none the test is skipped, and fails in CI."""
    found = os.environ.get(VARIABLE, "")
    if not os.access(found, os.X_OK):
        missing = f"no Python with these packages: `make text-environments` makes one; name it in {VARIABLE}"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    assert found != sys.executable
    return found


def play(folder: Path, python: str, name: str, args: dict[str, Any], seed: int, *actions: str) -> list[dict[str, Any]]:
    """What `reset` and each step return, of two games in one process."""

    async def work() -> list[dict[str, Any]]:
        pools = EnvironmentPools(SearchFolders(folder, folder), "warning", 8.0)
        spec = InstanceSpec(
            name, orjson.dumps(args), python=python, start_timeout_s=120.0, call_timeout_s=60.0, max_processes=1
        )
        games = []
        try:
            for _ in range(2):
                async with pools.instance(spec) as environment:
                    begun = await environment.reset(seed)
                    games.append([begun, *[await environment.step(action) for action in actions]])
        finally:
            await pools.close()
        assert games[0] == games[1] and pools.counts == {"environment_starts": 1}
        return games[0]

    return asyncio.run(asyncio.wait_for(work(), 240))


def test_a_game_of_gymnasium_with_numbered_actions(tmp_path: Path, python: str) -> None:
    args = {"render_mode": "ansi", "is_slippery": False}
    path = ("2", "2", "1", "nowhere", "go down: 1", "1", "2")
    begun, *steps = play(tmp_path, python, "gymnasium:FrozenLake-v1", args, 3, *path)
    assert begun["observation"] == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert steps[0]["observation"] == "(Right)\nS[F]FF\nFHFH\nFFFH\nHFFG"
    assert steps[3]["observation"] == "an action is a number from 0 to 3"
    assert [step["terminated"] for step in steps] == [False] * 6 + [True] and steps[-1]["reward"] == 1.0
    (taxi, _) = play(tmp_path, python, "gymnasium:Taxi-v4", {"render_mode": "ansi"}, 3, "0")
    assert "\n|[R]: |[ ]: :G|\n" in taxi["observation"] and "\x1b" not in taxi["observation"]


def test_a_game_of_textarena_shows_what_is_new(tmp_path: Path, python: str) -> None:
    begun, *steps = play(tmp_path, python, "textarena:TowerOfHanoi-v0", {}, 3, "[A C]", "[C A]", "up")
    assert "Tower of Hanoi with 3 disks" in begun["observation"]
    assert "You moved disk 1 from A to C." in steps[0]["observation"]
    assert "You moved disk 1 from C to A." in steps[1]["observation"]
    assert not any("Tower of Hanoi with" in step["observation"] for step in steps)
    moves = ("[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]")
    *_, last = play(tmp_path, python, "textarena:TowerOfHanoi-v0", {}, 3, *moves)
    assert (last["reward"], last["terminated"]) == (1.0, True)


@pytest.fixture
def openenv(python: str) -> Iterator[str]:
    with subprocess.Popen([python, str(SERVER)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"openenv:http://127.0.0.1:{int(server.stdout.readline())}"
        server.terminate()


def test_a_session_of_an_openenv_server(tmp_path: Path, python: str, openenv: str) -> None:
    begun, wrong, right = play(tmp_path, python, openenv, {"observation_field": "text"}, 7, "3", "7")
    assert begun == {"observation": "guess:"}
    assert wrong == {"observation": " no 3,", "reward": 0.0, "terminated": False, "truncated": False}
    assert (right["reward"], right["terminated"]) == (1.0, True)
    (whole, _) = play(tmp_path, python, openenv, {}, 7, "3")
    assert orjson.loads(whole["observation"]) == {"text": "guess:"}
