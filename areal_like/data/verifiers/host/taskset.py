"""An environment of the second generation (verifiers 0.4): a taskset, whose tasks an agent of verifiers plays."""

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from .fault_text import describe
from .versions import require

MOST_ROWS = 1000
"""Of a taskset without an end."""
NO_OWN, QUIET = "bash", "null"
"""Harnesses of verifiers: its default, which gives the model a shell, and one that only talks."""
SUBPROCESS = "subprocess"
RUN_HEADER = "X-Environment-Run"
"""Of a call of the policy: the trace that it is of, so that the gateway keeps them apart."""


class TasksetEnvironment:
    """The traffic of its agents goes through the server of verifiers: that of the policy's to the address of the
    episode, that of others to their own. Each trace of the policy's has its own reward; a function that scores it and
    raises is an error of the episode, as in verifiers."""

    def __init__(self, name: str, args: dict[str, Any]) -> None:
        from verifiers import v1  # type: ignore[import-not-found, attr-defined, unused-ignore]

        self._v1 = v1
        config, self._policies = _configured(v1, name, args)
        self._environment = v1.load_environment(config)
        self._clients = _EpisodeClients()
        self._serving: asyncio.Task[None] | None = None
        self._is_up, self._is_over = asyncio.Event(), asyncio.Event()

    def rows(self, held_out: bool) -> Iterator[dict[str, Any]]:
        """A taskset has no held-out rows; what its arguments select are all there are."""
        tasks = self._environment.taskset
        for task in tasks if tasks.bounded else islice(tasks, MOST_ROWS):
            yield {"prompt": _messages(task.data), "task": task.data.model_dump(mode="json", exclude_none=True)}

    async def play(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        await self._serve()
        sampling = self._v1.Sampling(**request["sampling"])
        places = asyncio.Semaphore(request["at_once"])

        async def play_one(policy: dict[str, str]) -> dict[str, Any]:
            async with places:
                return await self._play_one(request["row"]["task"], policy, request["model"], sampling)

        results = await asyncio.gather(*map(play_one, request["policies"]), return_exceptions=True)
        return [{"error": describe(each)} if isinstance(each, BaseException) else each for each in results]

    async def close(self) -> None:
        self._is_over.set()
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)

    async def _play_one(
        self, data: dict[str, Any], policy: dict[str, str], model: str, sampling: Any
    ) -> dict[str, Any]:
        environment, kind = self._environment, type(self._environment.taskset).task_type()
        task = kind(kind.data_type().model_validate(data), environment.config.taskset.task)
        with self._clients.open(policy):
            client = self._v1.EvalClientConfig(base_url=policy["base_url"])
            (slot,) = environment.slots(task)
            begun: list[Any] = []

            def watch(_: Any) -> None:
                nonlocal begun
                begun = slot.traces  # of this attempt: verifiers removes those that it makes again

            context = self._v1.ModelContext(model, client, sampling)
            try:
                episode = await environment.run_slot(slot, context, on_trace=watch)
                return _result(episode, begun, self._policies)
            except Exception as fault:
                return {"error": describe(fault), "runs": _runs(_trained(begun, self._policies), self._policies)}

    async def _serve(self) -> None:
        """What the episodes share is opened and closed in one task."""
        if self._serving is None:
            self._serving = asyncio.create_task(self._hold_open())
        serving, up = self._serving, asyncio.create_task(self._is_up.wait())
        try:
            await asyncio.wait([up, serving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if not self._is_up.is_set():
            if self._serving is serving:  # another group that waited may have begun anew
                self._serving = None
            serving.result()

    async def _hold_open(self) -> None:
        async with self._environment.serving():
            self._is_up.set()
            await self._is_over.wait()


class _EpisodeClients:
    """verifiers 0.4.0 keeps a client with its connections for each address until its server ends, and reads keys from
    variables. Here each episode has an address and a key: its clients share one pool, and end with it."""

    def __init__(self) -> None:
        from verifiers.v1.clients.base import build_async_httpx  # type: ignore[import-not-found, unused-ignore]
        from verifiers.v1.clients.eval import EvalClient  # type: ignore[import-not-found, unused-ignore]
        from verifiers.v1.interception.server import (  # type: ignore[import-not-found, unused-ignore]
            InterceptionServer,
        )

        require(InterceptionServer, "_client")
        require(EvalClient, "_headers")
        self._keys: dict[str, str] = {}
        connections: list[Any] = []
        keys, of_others = self._keys, InterceptionServer._client

        class EpisodeClient(EvalClient):  # type: ignore[misc, unused-ignore]
            def __init__(self, config: Any) -> None:
                if not connections:
                    connections.append(build_async_httpx(config))
                self.base_url, self.api_key = config.base_url, keys[config.base_url]
                self.headers: dict[str, str] = {}
                self.client = connections[0]

            def _headers(self, dialect: Any, incoming: Any, session_id: str | None) -> Any:
                headers = super()._headers(dialect, incoming, session_id)
                headers[RUN_HEADER] = session_id or ""
                return headers

        def client(server: Any, config: Any) -> Any:
            return EpisodeClient(config) if config.base_url in keys else of_others(server, config)

        InterceptionServer._client = client

    @contextlib.contextmanager
    def open(self, policy: dict[str, str]) -> Iterator[None]:
        self._keys[policy["base_url"]] = policy["key"]
        try:
            yield
        finally:
            del self._keys[policy["base_url"]]


def is_taskset(module: Any) -> bool:
    """Whether it exports one, as verifiers itself looks for it."""
    try:
        from verifiers.v1 import Taskset  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return False
    exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
    return any(isinstance(each, type) and issubclass(each, Taskset) for each in exported)


def _configured(v1: Any, name: str, args: dict[str, Any]) -> tuple[Any, list[str]]:
    """With the agents that the policy plays: those without a client. `args` are those of its taskset, and of its
    agents. Where they are silent an agent runs on this machine, and without a shell for the model, unless the package
    brings another one."""
    taskset, of_environment = v1.taskset_config_type(name).model_fields, v1.env_config_type(name).model_fields
    own = {key: value for key, value in args.items() if key in of_environment and key not in taskset}
    of_taskset = {key: value for key, value in args.items() if key not in own}
    declared = {
        key: field.default for key, field in of_environment.items() if isinstance(field.default, v1.AgentConfig)
    }
    given = {key: own.get(key) or {} for key in declared}
    of_policy = [key for key in given if not given[key].get("client")]
    if not of_policy:
        raise ValueError(f"the policy plays none of its agents {', '.join(given)}: remove the client of one of them")
    brought = v1.default_harness_id(name)
    harness = {"id": QUIET if brought == NO_OWN else brought}
    for key, agent in declared.items():
        own_harness = {} if agent.harness is not None else {"harness": harness}
        own[key] = {"runtime": {"type": SUBPROCESS}, **own_harness, **given[key]}
    config = v1.resolve_env_config({**own, "taskset": {**of_taskset, "id": name}})
    for key in declared:
        used = getattr(config, key).harness
        if "runtime" not in given[key] and type(v1.load_harness(used)).EXECUTES_CODE:
            raise ValueError(
                f"its agent {used.id} runs programs of the model; say where in args.{key}.runtime, such as "
                "{type: docker}"
            )
    return config, of_policy


def _messages(data: Any) -> list[dict[str, str]]:
    """What the model sees first, for the length of a row and for people."""
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    return [*system, {"role": "user", "content": data.prompt_text}]


def _trained(traces: list[Any], policies: list[str]) -> list[Any]:
    return [trace for trace in traces if trace.agent.name in policies and trace.agent.trainable]


def _runs(trained: list[Any], policies: list[str]) -> list[dict[str, Any]]:
    several = len(policies) > 1
    return [{"id": trace.id, "agent": trace.agent.name if several else ""} for trace in trained]


def _result(episode: Any, begun: list[Any], policies: list[str]) -> dict[str, Any]:
    """Each trace of the policy that is trained on is a run: its reward and metrics, or in `error` why the episode has
    none. An episode that fails lacks the traces that were not complete, which are among those `begun`. Where the policy
    plays several agents, the names of metrics begin with that of their agent."""
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        error = f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode is not valid"
        return {"error": error, "runs": _runs(_trained(begun, policies), policies)}
    trained = _trained(episode.traces, policies)
    runs = _runs(trained, policies)
    if not trained:
        played = [trace.agent.name for trace in episode.traces if trace.agent.name in policies]
        how = f"does not train its agent {played[0]}" if played else "has run no agent of the policy"
        return {"error": f"the environment {how}", "runs": []}
    unscored = [name for trace in trained for name, reward in trace.rewards.items() if reward is None]
    if unscored:
        return {"error": f"{unscored[0]} was not scored", "runs": runs}
    for run, trace in zip(runs, trained, strict=True):
        parts = {name: reward.score for name, reward in trace.rewards.items()}
        known = {name: value for name, value in trace.metrics.items() if value is not None} | parts
        prefix = f"{run['agent']}/" if run["agent"] else ""
        run |= {"reward": trace.reward, "metrics": {f"{prefix}{name}": value for name, value in known.items()}}
    return {"runs": runs}
