"""An environment of the first generation (verifiers 0.1): `load_environment` returns what plays and scores."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

FAULTS: ContextVar[list[str]] = ContextVar("FAULTS")
"""Of the functions of a rubric, in the group that is scored."""
KEPT_SAMPLING = ("n", "extra_body", "logprobs", "max_tokens", "temperature")


class ClassicEnvironment:
    """Plays groups with a client for each episode, and scores them as its own runner does. A rubric counts a function
    that raises as 0; here it is an error of the group. It tears itself down when its process ends."""

    def __init__(self, module: Any, args: dict[str, Any]) -> None:
        inspect.signature(module.load_environment).bind(**args)
        self._environment = module.load_environment(**args)
        for rubric in _rubrics(self._environment.rubric):
            rubric.funcs = [_noticed(function) for function in rubric.funcs]

    def rows(self, held_out: bool) -> Iterator[dict[str, Any]]:
        environment = self._environment
        rows = environment.get_eval_dataset() if held_out else environment.get_dataset()
        return (dict(row) for row in rows)

    async def play(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        environment, row = self._environment, request["row"]
        clients = [_client(policy, is_text=isinstance(row["prompt"], str)) for policy in request["policies"]]
        sampling = self._sampling(request["sampling"], is_text=isinstance(row["prompt"], str))
        try:
            plays = [environment.rollout(dict(row), client, request["model"], sampling) for client in clients]
            states = await asyncio.gather(*plays, return_exceptions=True)
            results = [_problem(state) for state in states]
            played = [state for state, result in zip(states, results, strict=True) if result is None]
            await self._score(played)
        finally:
            await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
        return [_result(state) if problem is None else problem for state, problem in zip(states, results, strict=True)]

    async def _score(self, states: list[Any]) -> None:
        faults: list[str] = []
        FAULTS.set(faults)
        if states:
            await self._environment.rubric.score_group(states)
        for state in states:
            await self._environment.rubric.cleanup(state)
        if faults:
            raise ValueError(f"a function of the rubric failed: {faults[0]}")

    def _sampling(self, given: dict[str, Any], is_text: bool) -> dict[str, Any]:
        own = {name: value for name, value in self._environment.sampling_args.items() if name not in KEPT_SAMPLING}
        return {**own, **given, "logprobs": 1 if is_text else True, "extra_body": {"return_token_ids": True}}


def _client(policy: dict[str, str], is_text: bool) -> Any:
    """For a prompt that is a text, the interface of completions."""
    from openai import AsyncOpenAI  # type: ignore[import-not-found, unused-ignore]

    if is_text:
        from verifiers.clients.openai_completions_client import (  # type: ignore[import-not-found]
            OpenAICompletionsClient as Client,
        )
    else:
        from verifiers.clients.openai_chat_completions_client import (  # type: ignore[import-not-found]
            OpenAIChatCompletionsClient as Client,
        )
    return Client(AsyncOpenAI(base_url=policy["base_url"], api_key=policy["key"], timeout=None))


def _rubrics(rubric: Any) -> Iterator[Any]:
    """Also those of a group of rubrics."""
    yield rubric
    for each in getattr(rubric, "rubrics", ()):
        yield from _rubrics(each)


def _noticed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose errors are kept in `FAULTS`."""

    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        try:
            returned = function(*args, **more)
        except Exception as fault:
            _note(function, fault)
            raise
        return _awaited(function, returned) if inspect.isawaitable(returned) else returned

    return call


async def _awaited(function: Callable[..., Any], returned: Any) -> Any:
    try:
        return await returned
    except Exception as fault:
        _note(function, fault)
        raise


def _note(function: Callable[..., Any], fault: Exception) -> None:
    FAULTS.get([]).append(f"{getattr(function, '__name__', function)}: {type(fault).__name__}: {fault}")


def _problem(state: Any) -> dict[str, Any] | None:
    """What it raised, or has noted as its error."""
    error = state if isinstance(state, BaseException) else state.get("error")
    if error is None:
        return None
    causes = [error, error.__cause__] if error.__cause__ is not None else [error]
    return {"error": ", from ".join(f"{type(each).__name__}: {each}".removesuffix(": ") for each in causes)}


def _result(state: Any) -> dict[str, Any]:
    metrics = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
    return {"reward": float(state["reward"]), "metrics": metrics, "stop": state.get("stop_condition")}
