"""An environment of the first generation (verifiers 0.1): `load_environment` returns what plays and scores."""

import asyncio
import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from .versions import require

FAULTS: ContextVar[list[str]] = ContextVar("FAULTS")
"""Of the functions of a rubric, in the group that is scored."""
OPENED: ContextVar[list[Any]] = ContextVar("OPENED")
"""States of an episode: verifiers returns none of an episode that raises or is stopped."""
STATE = "state"
ROUTE = "_route_child_input"
"""Of a group of environments."""
KEPT_SAMPLING = ("n", "extra_body", "logprobs", "max_tokens", "temperature")


class ClassicEnvironment:
    """Plays groups with a client for each episode, and scores them as its own runner does. A rubric counts a function
    that raises as 0; here it is an error of the group. It tears itself down when its process ends."""

    def __init__(self, module: Any, args: dict[str, Any]) -> None:
        inspect.signature(module.load_environment).bind(**args)
        self._environment = module.load_environment(**args)
        _check_routes(self._environment)
        for rubric in {id(each): each for each in _rubrics(self._environment.rubric)}.values():
            rubric.funcs = [_noticed(function) for function in rubric.funcs]
        for each in _leaves(self._environment):
            each.init_state = _noting(each.init_state)

    def rows(self, held_out: bool) -> Iterator[dict[str, Any]]:
        environment = self._environment
        rows = environment.get_eval_dataset() if held_out else environment.get_dataset()
        return (dict(row) for row in rows)

    async def close(self) -> None:
        """Nothing: verifiers does it when Python ends."""

    async def play(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        environment, row = _routed(self._environment, request["row"])
        is_text = isinstance(row["prompt"], str)
        clients = [_client(policy, is_text) for policy in request["policies"]]
        sampling = self._sampling(request["sampling"], is_text)
        states: dict[int, Any] = {}
        opened: list[list[Any]] = [[] for _ in clients]
        places = asyncio.Semaphore(request["at_once"])

        async def play_one(number: int, client: Any) -> None:
            OPENED.set(opened[number])
            async with places:
                states[number] = await environment.rollout(dict(row), client, request["model"], sampling)

        try:
            plays = [play_one(number, client) for number, client in enumerate(clients)]
            raised = await asyncio.gather(*plays, return_exceptions=True)
            await _score(environment, [states[number] for number in sorted(states)])
        finally:
            begun = [[states[number]] if number in states else opened[number][-1:] for number in range(len(clients))]
            try:
                await _clean_up(environment.rubric, [state for one in begun for state in one])
            finally:
                await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
        return [_result(states.get(number, fault)) for number, fault in enumerate(raised)]

    def _sampling(self, given: dict[str, Any], is_text: bool) -> dict[str, Any]:
        own = {name: value for name, value in self._environment.sampling_args.items() if name not in KEPT_SAMPLING}
        return {**own, **given, "logprobs": 1 if is_text else True, "extra_body": {"return_token_ids": True}}


def _check_routes(environment: Any) -> None:
    """Of groups of environments, and of groups within them."""
    for each in getattr(environment, "env_map", {}).values():
        require(environment, ROUTE)
        _check_routes(each)


def _leaves(environment: Any) -> Iterator[Any]:
    """Those that play, of a group of environments."""
    members = getattr(environment, "env_map", {}).values()
    for each in members:
        yield from _leaves(each)
    if not members:
        yield environment


def _noting(init_state: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init_state)
    async def note(*args: Any, **more: Any) -> Any:
        state = await init_state(*args, **more)
        OPENED.get([]).append(state)
        return state

    return note


def _routed(environment: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """For a row of a group of environments: the one that plays and scores it, and its own row."""
    while (route := getattr(environment, ROUTE, None)) is not None:
        name, row, _ = route(row)
        environment = environment.get_env_for_name(name)
    return environment, row


async def _score(environment: Any, states: list[Any]) -> None:
    """Also episodes with an error, as functions may compare all of a group."""
    faults: list[str] = []
    FAULTS.set(faults)
    if states and getattr(environment, "score_rollouts", True):
        await environment.rubric.score_group(states)
    elif states:
        await environment.rubric.dummy_score_group(states)
    if faults:
        raise ValueError(f"a function of the rubric failed: {faults[0]}")


async def _clean_up(rubric: Any, states: list[Any]) -> None:
    """All of them, whatever one raises: that is no fault of what is scored already, and in the log."""
    for state in states:
        try:
            await rubric.cleanup(state)
        except Exception:
            traceback.print_exc()


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
    """Also those of a group of rubrics, and of a group of environments."""
    yield rubric
    for each in getattr(rubric, "rubrics", ()):
        yield from _rubrics(each)
    for environment in getattr(rubric, "env_map", {}).values():
        yield from _rubrics(environment.rubric)


def _noticed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose errors are kept in `FAULTS`, but for one about an episode that has an error anyway. A
    rubric gives what a signature names: it has `state` in any case."""
    signature = inspect.signature(function)
    takes_state = STATE in signature.parameters or any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values()
    )

    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        state = more.get(STATE) if takes_state else more.pop(STATE, None)
        try:
            returned = function(*args, **more)
            if inspect.isawaitable(returned):
                return _awaited(function, returned, state)
            return _checked(returned, state)
        except Exception as fault:
            _note(function, fault, state)
            raise

    if not takes_state:
        state = inspect.Parameter(STATE, inspect.Parameter.KEYWORD_ONLY)
        parameters = [*signature.parameters.values(), state]
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


async def _awaited(function: Callable[..., Any], returned: Any, state: Any) -> Any:
    try:
        return _checked(await returned, state)
    except Exception as fault:
        _note(function, fault, state)
        raise


def _checked(returned: Any, state: Any) -> Any:
    """Functions about one episode return a number; those about a group get no `state`."""
    return returned if state is None else float(returned)


def _note(function: Callable[..., Any], fault: Exception, state: Any) -> None:
    if state is None or state.get("error") is None:
        FAULTS.get([]).append(f"{getattr(function, '__name__', function)}: {type(fault).__name__}: {fault}")


def _result(state: Any) -> dict[str, Any]:
    """Or what it raised, or has noted as its error."""
    error = state if isinstance(state, BaseException) else state.get("error")
    if error is not None:
        causes = [error, error.__cause__] if error.__cause__ is not None else [error]
        return {"error": ", from ".join(f"{type(each).__name__}: {each}".removesuffix(": ") for each in causes)}
    metrics = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
    return {"reward": float(state["reward"]), "metrics": metrics, "stop": state.get("stop_condition")}
