"""The inference servers: looks them up in the name store, and loads each new weight version into them."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from areal_like.discovery.base import Entry, NameStore, parse_entry
from areal_like.process.errors import NOT_STAGED, Failure, HttpError, Unreachable
from areal_like.process.http import HttpClient
from areal_like.process.identity import SERVER
from areal_like.process.patience import PATIENCE_KEY, answer_limit, patience_s
from areal_like.process.wait import NamedWait
from areal_like.rollout.controller.change_signal import ChangeSignal
from areal_like.rollout.controller.hearing import hear
from areal_like.rollout.controller.probe_noise import ProbeNoise
from areal_like.rollout.controller.publications import Publication, Publications, UpdateTimings
from areal_like.weights.errors import BadWeights
from areal_like.weights.versions import NO_VERSION

LOOKUP_INTERVAL_S = 0.5
"""How often servers are looked up in the name store."""
RETRY_S = 0.5
ABORT_TIMEOUT_S = 10.0
UNAVAILABLE = 503
"""Status of a server whose engine does not answer; it will be gone soon."""
ADAPTER = "adapter"

T = TypeVar("T")

log = logging.getLogger(__name__)


class ServerListener(Protocol):
    """Is notified of servers that are added, load weights or are gone."""

    def server_added(self, name: str, address: str) -> None: ...
    def server_loaded(self, name: str, version: int) -> None: ...
    def server_silent(self, name: str, seconds: float) -> None: ...
    def server_gone(self, name: str) -> None: ...
    def model_verified(self, digest: str) -> None: ...


@dataclass(eq=False)
class ServerHandle:
    """One incarnation of a server."""

    name: str
    entry: Entry
    kind: str = ""
    """What the noise of its probe depends on; known after its first update, or before it if noise is measured."""
    loaded: int = NO_VERSION
    lost: Counter[int] = field(default_factory=Counter)
    """By version: how often staged weights were lost before they were committed."""
    tasks: "set[asyncio.Task[Any]]" = field(default_factory=set)
    """Tasks of this server; they are cancelled when it is gone."""

    def run(self, work: "asyncio.Task[T]") -> "asyncio.Task[T]":
        self.tasks.add(work)
        work.add_done_callback(self.tasks.discard)
        return work


class Servers:
    """Runs one task per server: all servers load in parallel, each one version at a time, the newest."""

    def __init__(
        self,
        config: Any,
        num_servers: int,
        names: NameStore,
        http: HttpClient,
        listener: ServerListener,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        probe_noise: Mapping[str, Any],
        num_evaluators: int = 0,
    ) -> None:
        """`num_servers` are for training, the next `num_evaluators` for evaluations alone. `probe_noise`: what was
        measured before the checkpoint that the run continues from."""
        self._rollout, self._patience_s = config.rollout, patience_s(config, SERVER)
        self._update_limit = answer_limit(config, SERVER)
        self.probe_noise = ProbeNoise(config.actor.dtype, probe_noise)
        self._num_training, self._num_evaluators = num_servers, num_evaluators
        self._names, self._http, self._spawn = names, http, spawn
        self._listener = listener
        self.publications, self.times = Publications(), UpdateTimings()
        self.changed, self._check_now = ChangeSignal(), asyncio.Event()
        """`changed`: new weights were published, or a server was added, is gone or has loaded weights."""
        self.handles: dict[str, ServerHandle] = {}

    # Lookup.

    async def watch(self) -> None:
        """Runs until cancelled."""
        waiting: NamedWait | None = None
        while True:
            entries = await asyncio.to_thread(self._names.find, SERVER)
            self._update_handles({name: parse_entry(value) for name, value in entries.items()})
            expected = self._num_training + self._num_evaluators
            missing = expected - len(self.handles)
            if missing <= 0:
                if waiting is not None:
                    waiting.over()
                waiting = None
            else:
                servers = f"{missing} of {expected} inference servers"
                waiting = waiting or NamedWait(servers, self._patience_s, PATIENCE_KEY)
                waiting.check()
            try:
                async with asyncio.timeout(LOOKUP_INTERVAL_S):
                    await self._check_now.wait()
            except TimeoutError:
                pass
            self._check_now.clear()

    def check_now(self) -> None:
        """Looks up servers at once: one of them has not answered."""
        self._check_now.set()

    def _update_handles(self, entries: dict[str, Entry]) -> None:
        for name, server in list(self.handles.items()):
            if entries.get(name) != server.entry:
                log.warning("%s at %s is gone", name, server.entry.address)
                for task in list(server.tasks):
                    task.cancel()
                del self.handles[name]
                self.times.server_gone(name)
                self._listener.server_gone(name)
                self.changed.notify()
        for name, entry in entries.items():
            if name not in self.handles:
                log.info("%s is at %s", name, entry.address)
                self._listener.server_added(name, entry.address)
                self.handles[name] = server = ServerHandle(name, entry)
                server.run(self._spawn(self._keep_up_to_date(server)))
                report = partial(self._listener.server_silent, name)
                server.run(self._spawn(hear(self._http, entry.address, report)))
                self.changed.notify()

    # Weights.

    def publish(self, publication: Publication) -> None:
        if self.publications.add(publication):
            self.changed.notify()

    def hold(self, version: int | None) -> None:
        """Servers keep this version for an evaluation, until another one, or None, is held."""
        if self.publications.hold(version):
            self.changed.notify()

    def trains(self, server: ServerHandle) -> bool:
        """Whether it generates for training."""
        return not self._num_evaluators or int(server.name.rpartition("/")[2]) < self._num_training

    def target(self, server: ServerHandle | None = None) -> Publication | None:
        """The publication that this server should load now (None: those of training). Weights are held for the servers
        that evaluate; those for evaluations alone load none but for an evaluation."""
        trains = server is None or self.trains(server)
        if trains and self._num_evaluators:
            return self.publications.newest
        if not trains and not self.publications.is_held:
            return None
        return self.publications.target({each.loaded for each in self.handles.values() if self.trains(each) == trains})

    async def _keep_up_to_date(self, server: ServerHandle) -> None:
        """Loads weights from files. `weight_broadcast` handles weights that the trainer sends."""
        while True:
            publication = self.target(server)
            if publication is None or publication.is_sent or publication.version <= server.loaded:
                await self.changed.wait()
                continue
            command = partial(self._command_update, server, publication, "update_weights")
            await self.load(server, publication, command)

    async def load(
        self, server: ServerHandle, publication: Publication, command: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        """Makes the server use a version."""
        report = await self._with_retries(server, publication, command)
        if report is None:
            return
        if "digest" in report:
            self._listener.model_verified(report["digest"])
        server.loaded = publication.version
        now = time.monotonic()
        trains = self.trains(server)
        if report and trains:
            self.times.updated(server.name, report, now)
        others = (other for other in self.handles.values() if self.trains(other))
        if trains and all(other.loaded >= publication.version for other in others):
            self.times.serve_delay_s.append(now - publication.at)
        self._listener.server_loaded(server.name, publication.version)
        self.changed.notify()

    async def commit(self, server: ServerHandle, publication: Publication) -> None:
        """Makes the server use weights that it has staged."""
        await self.load(server, publication, partial(self._command_update, server, publication, "commit_weights"))

    async def _with_retries(
        self, server: ServerHandle, publication: Publication, command: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any] | None:
        """The server's report of the update: empty if only its answer was lost, None if the version was discarded
        before it was loaded or must be sent again.

        Weights that a server refuses end the run. A server that does not answer, or whose engine does not, is retried
        until it is known to be gone."""
        version, rollout = publication.version, self._rollout
        what = f"{server.name} to load weights v{version}"
        waiting = NamedWait(what, *self._update_limit)
        failures, again = 0, False
        while True:
            try:
                if again and await self._serves(server, version):
                    await self._resume(server, publication)
                    waiting.over()
                    return {}
                report = await command()
                waiting.over()
                return report
            except (HttpError, BadWeights) as refusal:
                if self.publications.newer_than(version) is not None and not publication.exists():
                    return None
                status = refusal.status if isinstance(refusal, HttpError) else 0
                if status == NOT_STAGED and publication.is_sent:
                    server.lost[version] += 1
                    if server.lost[version] <= rollout.request_retries:
                        log.warning("%s has lost weights v%d, which are sent again: %s", server.name, version, refusal)
                        return None
                if status == UNAVAILABLE:
                    waiting.what = f"{what} ({refusal})"
                    self.check_now()
                elif not (again and 0 < status < 500 and await self._serves(server, version)):
                    # otherwise the previous call succeeded after all, and this one is refused because of that
                    failures += 1
                    if (status < 500 and status != NOT_STAGED) or failures > rollout.request_retries:
                        raise Failure(f"{server.name} cannot serve weights v{version}: {refusal}") from refusal
                log.warning("%s failed to load weights v%d: %s", server.name, version, refusal)
            except Unreachable as fault:
                log.warning("%s does not answer: %s", server.name, fault.why)
                self.check_now()
            waiting.check()
            await asyncio.sleep(RETRY_S)
            again = True

    async def _command_update(self, server: ServerHandle, publication: Publication, what: str) -> dict[str, Any]:
        probe, mode = publication.probe, self._rollout.update_mode
        if self._pauses_for(publication):
            await self._command(server, "pause", None if mode == "auto" else {"mode": mode})
            await asyncio.sleep(self._rollout.pause_grace_period)
        if probe is not None and not server.kind:  # a late server may differ by as much as the others
            server.kind = self.probe_noise.kind_of(probe, await self.health(server))
        report: dict[str, Any] = await self._command(
            server, what, publication.body(mode, self.probe_noise.of(server.kind)), self._rollout.request_timeout
        )
        if probe is not None:
            server.kind, found = self.probe_noise.check(server.name, probe, report)
            self.times.probe_difference.append(found.mean)
        await self._resume(server, publication)
        return report

    def _pauses_for(self, publication: Publication) -> bool:
        """An adapter is loaded beside running requests, and may have to wait until some of them have ended."""
        return bool(self._rollout.pause_grace_period > 0 and publication.transport != ADAPTER)

    async def _resume(self, server: ServerHandle, publication: Publication) -> None:
        """Resumes a server that was paused for the update, or whose answer to the update was lost."""
        if self._pauses_for(publication):
            await self._command(server, "resume")

    async def _serves(self, server: ServerHandle, version: int) -> bool:
        """Whether the server has this version: then only an answer was lost."""
        try:
            health = await self.health(server)
        except (HttpError, Unreachable):
            return False
        return bool(health.get("version") == version)

    async def health(self, server: ServerHandle) -> dict[str, Any]:
        health: dict[str, Any] = await self._http.json("GET", server.entry.address, "/health")
        return health

    async def stage(self, server: ServerHandle, body: dict[str, Any], timeout_s: float) -> None:
        """Returns when the server has received all weights, without using them."""
        await self._command(server, "stage_weights", body, timeout_s)

    async def _command(self, server: ServerHandle, what: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        return await self._http.json("POST", server.entry.address, f"/control/{what}", body, timeout_s)

    async def abort_all(self) -> None:
        """Aborts all requests on the servers of training. A server that does not answer has none."""
        calls = (
            self._command(server, "abort", {"ids": "all"}, ABORT_TIMEOUT_S)
            for server in list(self.handles.values())
            if self.trains(server)
        )
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, HttpError | Unreachable):
                raise outcome
