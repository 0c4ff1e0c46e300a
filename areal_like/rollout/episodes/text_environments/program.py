"""The program of an environment's process: opens one text environment, and answers JSON lines on standard input.

It imports only the standard library and the environment, so that any Python with the environment's package runs it.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import logging
import math
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

OPEN, RESET, STEP = "open", "reset", "step"
HIGHLIGHTED = re.compile(r"\x1b\[[\d;]+m(.*?)\x1b\[0m")
"""Where a text for terminals shows a place by its colour."""


class GymnasiumEnvironment:
    """Its actions are texts or numbers. With `render_mode: ansi` an observation is what it renders."""

    def __init__(self, name: str, args: dict[str, Any]) -> None:
        import gymnasium  # type: ignore[import-not-found, unused-ignore]

        self._env = gymnasium.make(name, **args)
        self._count = getattr(self._env.action_space, "n", None)
        self._first = int(getattr(self._env.action_space, "start", 0))

    def reset(self, seed: int) -> tuple[str, Any]:
        observation, info = self._env.reset(seed=seed)
        return self._text(observation), info

    def step(self, action: str) -> tuple[str, float, bool, bool, Any]:
        if self._count is None:
            observation, reward, terminated, truncated, info = self._env.step(action)
            return self._text(observation), reward, terminated, truncated, info
        last = self._first + int(self._count) - 1
        number = re.search(r"-?\d+", action)
        if number is None or not self._first <= int(number[0]) <= last:
            return f"an action is a number from {self._first} to {last}", 0.0, False, False, {}
        observation, reward, terminated, truncated, info = self._env.step(int(number[0]))
        return self._text(observation), reward, terminated, truncated, info

    def _text(self, observation: Any) -> str:
        if self._env.render_mode == "ansi":
            return HIGHLIGHTED.sub(r"[\1]", str(self._env.render())).strip()
        return str(observation)


class TextArenaGame:
    """A game of textarena for one player. Its reward is that of the end. It is made anew for each game: what shows the
    messages of a game to a model (a wrapper of textarena) keeps those of the game before."""

    def __init__(self, name: str, args: dict[str, Any]) -> None:
        import textarena  # type: ignore[import-not-found, unused-ignore]

        self._make = partial(textarena.make, env_id=name, **args)
        self._env, self._seen = self._make(), ""

    def reset(self, seed: int) -> tuple[str, Any]:
        self._env = self._make()
        self._env.reset(num_players=1, seed=seed)
        self._seen = ""
        return self._observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Any]:
        done, _ = self._env.step(action=action)
        if not done:
            return self._observation(), 0.0, False, False, {}
        rewards, _ = self._env.close()
        return "", float((rewards or {}).get(0, 0.0)), True, False, {}

    def _observation(self) -> str:
        """What is new in it: most games show all that was before again."""
        _, shown = self._env.get_observation()
        text = shown if isinstance(shown, str) else "\n".join(str(each[1]) for each in shown)
        before, self._seen = self._seen, text
        return text.removeprefix(before).strip()


class OpenEnvironment:
    """A server of OpenEnv at an address. An action is a mapping with the text at `action_field`; an observation is the
    text at `observation_field`, else all of it as JSON."""

    def __init__(self, address: str, args: dict[str, Any]) -> None:
        from openenv.core.generic_client import (  # type: ignore[import-not-found, unused-ignore]
            GenericEnvClient,
        )

        args = dict(args)
        self._action, self._shown = args.pop("action_field", "message"), args.pop("observation_field", None)
        client = GenericEnvClient(base_url=address, **args)
        self._client = client.sync() if hasattr(client, "sync") else client
        self._client.connect()

    def reset(self, seed: int) -> tuple[str, Any]:
        return self._text(self._client.reset(seed=seed).observation), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Any]:
        result = self._client.step({self._action: action})
        return self._text(result.observation), result.reward or 0.0, bool(result.done), False, {}

    def _text(self, observation: Any) -> str:
        if self._shown is None:
            return json.dumps(observation, ensure_ascii=False)
        return str(observation[self._shown])


FAMILIES: dict[str, tuple[str, Callable[[str, dict[str, Any]], Any]]] = {
    "gymnasium": ("gymnasium", GymnasiumEnvironment),
    "openenv": ("openenv-core", OpenEnvironment),
    "textarena": ("textarena", TextArenaGame),
}
"""What an id begins with -> the package on PyPI, and how one is opened."""


def open_environment(name: str, args: dict[str, Any], folders: list[str]) -> Any:
    """`gymnasium:NAME` and so on, or `file.py:Class` or `package.module:Class`. The folders are searched in their
    order, before the working directory and what is installed."""
    family, _, own_name = name.partition(":")
    if family in FAMILIES:
        package, kind = FAMILIES[family]
        try:
            return kind(own_name, args)
        except ModuleNotFoundError as missing:
            needs = f"{name} needs the package {package}, which {sys.executable} lacks ({missing})"
            raise RuntimeError(f"{needs}; `{sys.executable} -m pip install {package}` installs it") from missing
    place, _, thing = name.rpartition(":" if ":" in name else ".")
    sys.path[:0] = [each for each in folders if each not in sys.path]
    return getattr(_module(place, folders), thing)(**args)


def _module(place: str, folders: list[str]) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    file = next(path for path in (Path(folder, place) for folder in [*folders, ""]) if path.is_file())
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[file.stem] = module  # dataclasses look up their module while it is executed
    spec.loader.exec_module(module)
    return module


class Session:
    """One environment, and the answers to requests about it."""

    def __init__(self) -> None:
        self._name, self._env = "", cast(Any, None)
        self._loop: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if OPEN in request:
            logging.basicConfig(level=request["level"].upper(), format="%(levelname)s %(name)s: %(message)s")
            self._name = request[OPEN]
            if (limit := request["max_bytes"]) is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            self._env = open_environment(self._name, request["args"], request["folders"])
            return {}
        if RESET in request:
            observation, info = self._returned("reset", 2, self._env.reset(seed=request[RESET]))
            return {"observation": _text(observation), **_score(info)}
        returned = self._returned("step", 5, self._env.step(request[STEP]))
        observation, reward, terminated, truncated, info = returned
        ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
        return {"observation": _text(observation), "reward": _number("reward", reward), **ends, **_score(info)}

    def _returned(self, method: str, count: int, value: Any) -> Any:
        if inspect.isawaitable(value):
            self._loop = self._loop or asyncio.new_event_loop()
            value = self._loop.run_until_complete(value)
        if isinstance(value, tuple) and len(value) == count:
            return value
        parts = "observation, info" if count == 2 else "observation, reward, terminated, truncated, info"
        got = f"{len(value)} values" if isinstance(value, tuple) else type(value).__name__
        raise ValueError(f"{method} of {self._name} returned {got}; return ({parts})")


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise ValueError(f"an observation is {type(observation).__name__}; return a text")
    observation.encode()  # raises where it has half of a surrogate pair
    return observation


def _number(what: str, value: Any) -> float:
    if hasattr(value, "__float__") and math.isfinite(number := float(value)):
        return number
    raise ValueError(f"a {what} is {value!r:.80}; return a finite number")


def _score(info: Any) -> dict[str, float]:
    """What evaluations report, where the environment says it."""
    return {"score": _number("score", info["score"])} if isinstance(info, dict) and "score" in info else {}


def _described(fault: BaseException) -> str:
    """With the place in the environment's code, where there is one."""
    frames = [each for each in traceback.extract_tb(fault.__traceback__) if each.filename != __file__]
    message = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
    return f"{frames[-1].filename} line {frames[-1].lineno}, in {frames[-1].name}: {message}" if frames else message


def main() -> None:
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what an environment prints is no answer
    sys.path[:] = [each for each in sys.path if each != str(Path(__file__).parent)]  # its names are not for others
    session = Session()
    for line in requests:
        try:
            reply = session.answer(json.loads(line))
        except KeyboardInterrupt:
            raise
        except BaseException as fault:
            traceback.print_exc()
            reply = {"error": _described(fault)}
        replies.write(json.dumps(reply, ensure_ascii=False).encode(errors="replace") + b"\n")
        replies.flush()
    sys.stdout.flush()
    os._exit(0)  # threads of an environment keep nothing alive


if __name__ == "__main__":
    main()
