"""The inference servers: found by name as they come and go, and given every new version of the weights."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from areal_like.discovery.base import Entry, NameStore, parse_entry
from areal_like.process.errors import NOT_STAGED, Failure, HttpError, Unreachable
from areal_like.process.http import HttpClient
from areal_like.process.identity import SERVER
from areal_like.process.wait import NamedWait
from areal_like.rollout.controller.change_signal import ChangeSignal
from areal_like.rollout.controller.publications import Publication, Publications, UpdateTimings
from areal_like.weights.errors import BadWeights
from areal_like.weights.probe import TOLERANCES, check_probe
from areal_like.weights.versions import NO_VERSION

LOOKUP_INTERVAL_S = 0.5
"""How often names are looked through for servers that came or went."""
RETRY_S = 0.5
ABORT_TIMEOUT_S = 10.0
UNAVAILABLE = 503
"""Status of a server that cannot say anything of the weights: its engine does not answer, and it will be gone soon."""
ADAPTER = "adapter"

T = TypeVar("T")

log = logging.getLogger(__name__)


class ServerListener(Protocol):
    """Who wants to know which servers there are, and what they serve."""

    def server_added(self, name: str, address: str) -> None: ...
    def server_loaded(self, name: str, version: int) -> None: ...
    def server_gone(self, name: str) -> None: ...


@dataclass(eq=False)
class ServerHandle:
    """A server as it lives now."""

    name: str
    entry: Entry
    loaded: int = NO_VERSION
    lost: Counter[int] = field(default_factory=Counter)
    """By version: how often it was there, and gone when it should have been taken into use."""
    tasks: "set[asyncio.Task[Any]]" = field(default_factory=set)
    """What is done with it; all of it ends when it is gone."""

    def run(self, work: "asyncio.Task[T]") -> "asyncio.Task[T]":
        self.tasks.add(work)
        work.add_done_callback(self.tasks.discard)
        return work


class Servers:
    """One task for each server, so that all load at once, and each one version at a time: the newest."""

    def __init__(
        self,
        config: Any,
        num_servers: int,
        names: NameStore,
        caller: HttpClient,
        pool: ServerListener,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
    ) -> None:
        self._rollout = config.rollout
        dtype = config.embedded.dtype
        self._dtype = dtype if dtype in TOLERANCES else config.actor.dtype
        """That of servers which do not say in what they compute."""
        self._num_servers, self._names, self._caller, self._pool, self._spawn = num_servers, names, caller, pool, spawn
        self.publications, self.times = Publications(), UpdateTimings()
        self.changed, self._check_now = ChangeSignal(), asyncio.Event()
        """`changed`: there are new weights, or a server came, went or has some."""
        self.handles: dict[str, ServerHandle] = {}

    # Who is there.

    async def watch(self) -> None:
        """Until cancelled."""
        waiting: NamedWait | None = None
        while True:
            found = await asyncio.to_thread(self._names.find, SERVER)
            self._update_handles({name: parse_entry(value) for name, value in found.items()})
            missing = self._num_servers - len(self.handles)
            if missing <= 0:
                waiting = None
            else:
                servers = f"{missing} of {self._num_servers} inference servers"
                waiting = waiting or NamedWait(servers, self._rollout.setup_timeout, "rollout.setup_timeout")
                waiting.check()
            try:
                async with asyncio.timeout(LOOKUP_INTERVAL_S):
                    await self._check_now.wait()
            except TimeoutError:
                pass
            self._check_now.clear()

    def check_now(self) -> None:
        """Somebody got no answer from a server."""
        self._check_now.set()

    def _update_handles(self, entries: dict[str, Entry]) -> None:
        for name, server in list(self.handles.items()):
            if entries.get(name) != server.entry:
                log.warning("%s at %s is gone", name, server.entry.address)
                for task in list(server.tasks):
                    task.cancel()
                del self.handles[name]
                self.times.gone(name)
                self._pool.server_gone(name)
                self.changed.notify()
        for name, entry in entries.items():
            if name not in self.handles:
                log.info("%s is at %s", name, entry.address)
                self._pool.server_added(name, entry.address)
                self.handles[name] = server = ServerHandle(name, entry)
                server.run(self._spawn(self._keep_up_to_date(server)))
                self.changed.notify()

    # What they serve.

    def publish(self, publication: Publication) -> None:
        if self.publications.add(publication):
            self.changed.notify()

    def hold(self, version: int | None) -> None:
        """Servers keep this version until another is held, or none: an evaluation needs it."""
        if self.publications.hold(version):
            self.changed.notify()

    def target(self) -> Publication | None:
        """What all servers should have now."""
        return self.publications.target({server.loaded for server in self.handles.values()})

    async def _keep_up_to_date(self, server: ServerHandle) -> None:
        """By files. What the trainer sends itself goes to many at once: see `sending`."""
        while True:
            publication = self.target()
            if publication is None or publication.is_sent or publication.version <= server.loaded:
                await self.changed.next()
                continue
            command = partial(self._command_update, server, publication, "update_weights")
            await self.load(server, publication, command)

    async def load(
        self, server: ServerHandle, publication: Publication, command: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        """Has the server take a version into use."""
        said = await self._with_retries(server, publication, command)
        if said is None:
            return
        server.loaded = publication.version
        now = time.monotonic()
        if said:
            self.times.updated(server.name, said, now)
        if all(other.loaded >= publication.version for other in self.handles.values()):
            self.times.serve_delay_s.append(now - publication.at)
        self._pool.server_loaded(server.name, publication.version)
        self.changed.notify()

    async def commit(self, server: ServerHandle, publication: Publication) -> None:
        """The same, of what the server has beside the weights that it uses."""
        await self.load(server, publication, partial(self._command_update, server, publication, "commit_weights"))

    async def _with_retries(
        self, server: ServerHandle, publication: Publication, command: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any] | None:
        """What the server says of it: nothing where only its answer was lost, None where the version was discarded
        before it came to load it, or has to be sent anew. Weights that it refuses end the run; a server that does not
        answer, or whose engine does not, is tried again until it is known to be gone."""
        version, rollout = publication.version, self._rollout
        what = f"{server.name} to load weights v{version}"
        waiting = NamedWait(what, rollout.request_timeout, "rollout.request_timeout")
        failures, again = 0, False
        while True:
            try:
                if again and await self._serves(server, version):
                    await self._resume(server, publication)
                    return {}
                return await command()
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
                    # else it is only refused because the call before this one came through after all
                    failures += 1
                    if (status < 500 and status != NOT_STAGED) or failures > rollout.request_retries:
                        raise Failure(f"{server.name} cannot serve weights v{version}: {refusal}") from refusal
                log.warning("%s failed to load weights v%d: %s", server.name, version, refusal)
            except Unreachable as silence:
                log.warning("%s does not answer: %s", server.name, silence.why)
                self.check_now()
            waiting.check()
            await asyncio.sleep(RETRY_S)
            again = True

    async def _command_update(self, server: ServerHandle, publication: Publication, what: str) -> dict[str, Any]:
        probe, mode = publication.probe, self._rollout.update_mode
        if self._pauses_for(publication):
            await self._command(server, "pause", None if mode == "auto" else {"mode": mode})
            await asyncio.sleep(self._rollout.pause_grace_period)
        said: dict[str, Any] = await self._command(server, what, publication.body(mode), self._rollout.request_timeout)
        if probe is not None:
            check_probe(probe, said["probe_logprobs"], said.get("dtype", self._dtype))
        await self._resume(server, publication)
        return said

    def _pauses_for(self, publication: Publication) -> bool:
        """An adapter comes beside what runs, and may have to wait until some of that has ended."""
        return bool(self._rollout.pause_grace_period > 0 and publication.transport != ADAPTER)

    async def _resume(self, server: ServerHandle, publication: Publication) -> None:
        """Where it was paused for the update; also where only the answer to that was lost."""
        if self._pauses_for(publication):
            await self._command(server, "resume")

    async def _serves(self, server: ServerHandle, version: int) -> bool:
        """Whether only the answer was lost."""
        try:
            said = await self.health(server)
        except (HttpError, Unreachable):
            return False
        return bool(said.get("version") == version)

    async def health(self, server: ServerHandle) -> dict[str, Any]:
        said: dict[str, Any] = await self._caller.json("GET", server.entry.address, "/health")
        return said

    async def stage(self, server: ServerHandle, body: dict[str, Any], timeout_s: float) -> None:
        """Comes back when all of the weights are there beside those in use."""
        await self._command(server, "stage_weights", body, timeout_s)

    async def _command(self, server: ServerHandle, what: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        return await self._caller.json("POST", server.entry.address, f"/control/{what}", body, timeout_s)

    async def abort_all(self) -> None:
        """Ends whatever the servers generate now. One that does not answer has nothing to end."""
        calls = (
            self._command(server, "abort", {"ids": "all"}, ABORT_TIMEOUT_S) for server in list(self.handles.values())
        )
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, HttpError | Unreachable):
                raise outcome
