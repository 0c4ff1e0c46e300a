"""The inference servers: found by name as they come and go, and given every new version of the weights."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from areal_like.discovery.base import Entry, Names, parse
from areal_like.process.errors import Failure, Refused, Unreachable
from areal_like.process.http import Caller
from areal_like.process.identity import SERVER
from areal_like.process.waiting import Waiting
from areal_like.rollout.controller.bell import Bell
from areal_like.rollout.controller.publications import Publication, Publications, UpdateTimes
from areal_like.rollout.placement import NEVER_TOLD
from areal_like.weights.errors import BadWeights
from areal_like.weights.probe import TOLERANCES, check_probe

LOOK_S = 0.5
"""How often names are looked through for servers that came or went."""
RETRY_S = 0.5
ABORT_S = 10.0

log = logging.getLogger(__name__)


class Pool(Protocol):
    """Who wants to know which servers there are, and what they serve."""

    def server_came(self, name: str, address: str) -> None: ...
    def server_loaded(self, name: str, version: int) -> None: ...
    def server_gone(self, name: str) -> None: ...


@dataclass(eq=False)
class Link:
    """A server as it lives now."""

    name: str
    entry: Entry
    task: "asyncio.Task[None] | None" = None
    loaded: int = NEVER_TOLD


class Servers:
    """One task for each server, so that all load at once, and each one version at a time: the newest."""

    def __init__(
        self,
        config: Any,
        num_servers: int,
        names: Names,
        caller: Caller,
        pool: Pool,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
    ) -> None:
        self._rollout = config.rollout
        dtype = config.embedded.dtype
        self._dtype = dtype if dtype in TOLERANCES else config.actor.dtype
        self._num_servers, self._names, self._caller, self._pool, self._spawn = num_servers, names, caller, pool, spawn
        self.publications, self.times = Publications(), UpdateTimes()
        self._published, self._look_now = Bell(), asyncio.Event()
        self._links: dict[str, Link] = {}

    # Who is there.

    async def watch(self) -> None:
        """Until cancelled."""
        waiting: Waiting | None = None
        while True:
            found = await asyncio.to_thread(self._names.find, SERVER)
            self._see({name: parse(value) for name, value in found.items()})
            missing = self._num_servers - len(self._links)
            if missing <= 0:
                waiting = None
            else:
                servers = f"{missing} of {self._num_servers} inference servers"
                waiting = waiting or Waiting(servers, self._rollout.setup_timeout, "rollout.setup_timeout")
                waiting.check()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._look_now.wait()
            except TimeoutError:
                pass
            self._look_now.clear()

    def look_now(self) -> None:
        """Somebody got no answer from a server."""
        self._look_now.set()

    def _see(self, entries: dict[str, Entry]) -> None:
        for name, link in list(self._links.items()):
            if entries.get(name) != link.entry:
                log.warning("%s at %s is gone", name, link.entry.address)
                if link.task is not None:
                    link.task.cancel()
                del self._links[name]
                self.times.gone(name)
                self._pool.server_gone(name)
        for name, entry in entries.items():
            if name not in self._links:
                log.info("%s is at %s", name, entry.address)
                self._pool.server_came(name, entry.address)
                self._links[name] = link = Link(name, entry)
                link.task = self._spawn(self._keep_up_to_date(link))

    # What they serve.

    def publish(self, publication: Publication) -> None:
        if self.publications.add(publication):
            self._published.ring()

    async def _keep_up_to_date(self, link: Link) -> None:
        while True:
            publication = self.publications.newer_than(link.loaded)
            if publication is None:
                await self._published.next()
                continue
            said = await self._update(link, publication)
            if said is None:
                continue
            link.loaded = publication.version
            now = time.monotonic()
            if said:
                self.times.updated(link.name, said, now)
            if all(other.loaded >= publication.version for other in self._links.values()):
                self.times.serve_delay_s.append(now - publication.at)
            self._pool.server_loaded(link.name, publication.version)

    async def _update(self, link: Link, publication: Publication) -> dict[str, Any] | None:
        """What the server says of it: nothing where only its answer was lost, None where the version was discarded
        before it came to load it. Weights that it refuses end the run; a server that does not answer is tried again
        until it is known to be gone."""
        version, rollout = publication.version, self._rollout
        waiting = Waiting(f"{link.name} to load weights v{version}", rollout.request_timeout, "rollout.request_timeout")
        failures, again = 0, False
        while True:
            try:
                if again and await self._has(link, version):
                    await self._resume(link)
                    return {}
                return await self._command_update(link, publication)
            except (Refused, BadWeights) as refusal:
                if self.publications.newer_than(version) is not None and not publication.folder.is_dir():
                    return None
                failures += 1
                if isinstance(refusal, BadWeights) or refusal.status < 500 or failures > rollout.request_retries:
                    raise Failure(f"{link.name} cannot serve weights v{version}: {refusal}") from refusal
                log.warning("%s failed to load weights v%d: %s", link.name, version, refusal)
            except Unreachable as silence:
                log.warning("%s does not answer: %s", link.name, silence.why)
                self.look_now()
            waiting.check()
            await asyncio.sleep(RETRY_S)
            again = True

    async def _command_update(self, link: Link, publication: Publication) -> dict[str, Any]:
        probe, grace_s = publication.probe, self._rollout.pause_grace_period
        body = {
            "version": publication.version,
            "folder": str(publication.folder),
            "probe": None if probe is None else probe._asdict(),
        }
        if grace_s > 0:
            await self._command(link, "pause")
            await asyncio.sleep(grace_s)
        said: dict[str, Any] = await self._command(link, "update_weights", body, self._rollout.request_timeout)
        if probe is not None:
            check_probe(probe, said["probe_logprobs"], self._dtype)
        await self._resume(link)
        return said

    async def _resume(self, link: Link) -> None:
        """Where it was paused for the update; also where only the answer to that was lost."""
        if self._rollout.pause_grace_period > 0:
            await self._command(link, "resume")

    async def _has(self, link: Link, version: int) -> bool:
        """Whether only the answer was lost."""
        try:
            said = await self._caller.json("GET", link.entry.address, "/health")
        except (Refused, Unreachable):
            return False
        return bool(said.get("version") == version)

    async def _command(self, link: Link, what: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        return await self._caller.json("POST", link.entry.address, f"/control/{what}", body, timeout_s)

    async def abort_all(self) -> None:
        """Ends whatever the servers generate now. One that does not answer has nothing to end."""
        calls = (self._command(link, "abort", {"ids": "all"}, ABORT_S) for link in list(self._links.values()))
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Refused | Unreachable):
                raise outcome
