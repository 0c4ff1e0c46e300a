"""Weight broadcast: rounds in which the trainer sends weights to servers through a collective group.

In a round, the servers that lack the newest version form a group with the trainer. They receive in parallel while the
trainer sends. If one refuses or dies, the group is broken up on both sides, and a round without it follows. When all
have received everything, each commits the weights. A server that joins later gets its own round: the trainer keeps the
newest version for that.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from areal_like.process.errors import Failure, HttpError, Unreachable
from areal_like.process.identity import SERVER
from areal_like.process.patience import answer_limit
from areal_like.process.wait import NamedWait
from areal_like.rollout.controller.broadcast_round import BroadcastRound
from areal_like.rollout.controller.change_signal import ChangeSignal
from areal_like.rollout.controller.publications import Publication
from areal_like.rollout.controller.servers import ServerHandle, Servers
from areal_like.weights.index import dump_index
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.transfer_path import GLOO, Receiver, TransferPath, choose_path
from areal_like.weights.versions import NO_VERSION

RETRY_S = 0.5
BREAKUP_TIMEOUT_S = 10.0
"""How long the servers of a group that is broken up may take to answer."""
MAX_REFUSALS = 2
"""Refusals of a version by a server; the first may be a transmission error."""
MAX_BREAKUPS = 20
"""Groups in a row that a server may break up. The delays between them double up to MAX_RETRY_S, minutes in all: time to
replace a broken server."""
MAX_RETRY_S = 30.0

log = logging.getLogger(__name__)


@dataclass
class BroadcastMember:
    """A server in the broadcast."""

    processes: int
    devices: list[str]
    gpu_fault: str = ""
    """Why its GPUs are used no more."""
    refusals: dict[int, int] = field(default_factory=dict)
    is_alone: bool = False
    """It broke up its last group, so it is alone in its next one."""
    breaks: int = 0
    """Groups in a row that it broke up for reasons other than the weights."""
    busy: bool = False
    not_before: float = 0.0


class WeightBroadcast:
    """`is_over`: whether the run needs no more weights."""

    def __init__(
        self,
        config: Any,
        servers: Servers,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        is_over: Callable[[], bool],
        attempt: int,
    ) -> None:
        self._rollout, self._timeout_s = config.rollout, float(config.weights.broadcast.timeout_s)
        self._update_limit = answer_limit(config, SERVER)
        self._servers, self._spawn, self._is_over, self._attempt = servers, spawn, is_over, attempt
        self._members: dict[ServerHandle, BroadcastMember] = {}
        self._round: BroadcastRound | None = None
        self._changed = ChangeSignal()
        self._number = 0
        self._path = TransferPath(GLOO, "")
        self._offered = NO_VERSION
        """The version that the trainer can send. It may not be published yet; the trainer has no older one."""
        self._withdrawn = NO_VERSION
        """The newest version that the trainer can send no more."""

    # Calls of the trainer.

    async def next_round(self, version: int, kept: str, hold_s: float) -> dict[str, Any]:
        """The trainer has this version to send. `kept`: the group that it has kept from its last transfer."""
        self._offered = max(version, self._withdrawn + 1)

        def reply() -> dict[str, Any] | None:
            if self._is_over():
                return {"end": True}
            if version <= self._withdrawn:
                return {"wait": True, "end": False}
            current = self._round
            if current is None or current.over:
                return None
            if current.version > version:  # it asked before it published the newer version, and will ask again
                return {"wait": True, "end": False}
            if current.version < version:
                self._end(current, f"the trainer now has weights v{version}")
                return None
            if not current.joined and current.continues == kept:
                current.rendezvous = current.rendezvous._replace(continues=kept)
            current.joined = True
            self._changed.notify()
            return {"meeting": current.rendezvous._asdict()}

        return await self._changed.wait_for(reply, hold_s) or {"wait": True, "end": self._is_over()}

    async def end_of_round(self, group: str, hold_s: float) -> dict[str, Any]:
        """The trainer sends, and waits for the end of the round."""

        def reply() -> dict[str, Any] | None:
            current = self._round
            if current is None or current.rendezvous.group != group:
                return {"over": True, "why": "the round is over"}
            return {"over": True, "why": current.why} if current.over else None

        return await self._changed.wait_for(reply, hold_s) or {"over": False}

    def withdraw(self, version: int) -> None:
        """The trainer is about to overwrite its copy of this version: no round begins with it. One that the trainer
        takes part in goes on."""
        self._withdrawn = max(version, self._withdrawn)
        self._offered = max(self._offered, version + 1)
        current = self._round
        if current is not None and not current.joined and current.version <= version:
            self._end(current, f"the trainer replaces weights v{version}")
        self._changed.notify()

    def check_now(self) -> None:
        """To be called when the result of `is_over` may have changed."""
        self._changed.notify()

    # Rounds.

    async def run(self) -> None:
        """Runs until cancelled."""
        waiting: NamedWait | None = None
        while True:
            publication, handles = await self._wait_for_servers()
            what = f"servers to take weights v{publication.version}"
            if waiting is None or waiting.what != what:
                waiting = NamedWait(what, *self._update_limit)
            waiting.check()
            if await self._send(publication, handles):
                waiting = None

    async def _wait_for_servers(self) -> tuple[Publication, list[ServerHandle]]:
        """Waits for servers that lack the newest version."""
        while True:
            publication = self._servers.target()
            self._members = {
                server: self._members[server] for server in self._servers.handles.values() if server in self._members
            }
            limit_s = None
            if publication is not None and publication.is_sent:
                behind = [
                    server
                    for server in self._servers.handles.values()
                    if server.loaded < publication.version and self._servers.target(server) is publication
                ]
                if publication.version >= self._offered and (group := self._next_group(behind)):
                    return publication, group
                if any(server not in self._members or not self._members[server].busy for server in behind):
                    limit_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._servers.changed.wait()

    def _next_group(self, handles: Sequence[ServerHandle]) -> list[ServerHandle]:
        """The servers of the next group. A server that broke up its last group comes after the others, alone."""
        now = time.monotonic()
        members = [(server, self._members.get(server)) for server in handles]
        free = [
            (server, member) for server, member in members if not member or not (member.busy or member.not_before > now)
        ]
        sound = [server for server, member in free if not member or not member.is_alone]
        return sound or [server for server, _ in free[:1]]

    async def _send(self, publication: Publication, handles: Sequence[ServerHandle]) -> bool:
        """Runs one round; whether all its servers have the weights."""
        members = [server for server in handles if await self._ensure_member(server)]
        if not members:
            return False
        current = self._round = self._open(publication, members)
        self._changed.notify()
        if not await self._wait_for_trainer(current):
            return False
        log.debug("%s: weights v%d to %s", current.rendezvous.title, current.version, _names(members))
        outcomes = await self._stage(current, publication, members)
        self._blame(publication.version, {server: fault for server, fault in outcomes.items() if fault is not None})
        for server, fault in outcomes.items():
            if fault is None and not current.why:
                member = self._members[server]
                member.busy, member.is_alone, member.breaks = True, False, 0
                server.run(self._spawn(self._commit(server, publication)))
        return not current.why

    async def _ensure_member(self, server: ServerHandle) -> bool:
        if server in self._members:
            return True
        try:
            facts = await self._servers.health(server)
        except (HttpError, Unreachable) as fault:
            log.warning("%s does not answer: %s", server.name, fault)
            self._servers.check_now()
            await asyncio.sleep(RETRY_S)
            return False
        self._members[server] = BroadcastMember(int(facts.get("processes", 1)), list(facts.get("devices", [])))
        return True

    def _open(self, publication: Publication, handles: Sequence[ServerHandle]) -> BroadcastRound:
        sender, last = publication.sender, self._round
        assert sender is not None, "a publication that the trainer sends has its address"
        self._number += 1
        members = [self._members[server] for server in handles]
        path = choose_path(
            sender["devices"],
            [
                Receiver(server.name, member.processes, member.devices, member.gpu_fault)
                for server, member in zip(handles, members, strict=True)
            ],
        )
        if path != self._path:
            log.info("weights go to %s by %s: %s", _names(handles), *path)
            self._path = path
        rendezvous = Rendezvous(
            host=sender["host"],
            port=sender["port"],
            group=f"attempt-{self._attempt}-group-{self._number}.{secrets.token_hex(16)}",
            backend=path.backend,
            first_rank=0,
            world=1 + sum(member.processes for member in members),
            timeout_s=self._timeout_s,
        )
        current = BroadcastRound(rendezvous, publication.version, list(handles), sender)
        if last is not None and last.over and not last.why and last.may_be_continued_by(current):
            current.continues = last.rendezvous.continues or last.rendezvous.group
        return current

    async def _wait_for_trainer(self, current: BroadcastRound) -> bool:
        """False if the trainer already has a newer version."""
        waiting = NamedWait("the trainer to send weights", self._timeout_s, "weights.broadcast.timeout_s")
        while not (current.joined or current.over):
            waiting.check()
            await self._changed.wait_for(lambda: current.joined or current.over or None, RETRY_S)
        waiting.over()
        return current.joined

    async def _stage(
        self, current: BroadcastRound, publication: Publication, handles: Sequence[ServerHandle]
    ) -> "dict[ServerHandle, Exception | None]":
        """The outcome by server. The first failure breaks up the group, which ends the other servers' calls."""
        tasks: dict[asyncio.Task[Any], ServerHandle] = {}
        rank = 1
        for server in handles:
            body = publication.body(self._rollout.update_mode)
            assert publication.index is not None
            rendezvous = current.rendezvous._replace(first_rank=rank)
            body |= {"index": dump_index(publication.index), "meeting": rendezvous._asdict()}
            rank += self._members[server].processes
            tasks[server.run(asyncio.create_task(_result(self._servers.stage(server, body, self._timeout_s))))] = server
        outcomes: dict[ServerHandle, Exception | None] = {}
        pending, ends = set(tasks), None
        while pending:
            limit_s = None if ends is None else max(0.0, ends - time.monotonic())
            done, pending = await asyncio.wait(pending, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                server = tasks[task]
                outcomes[server] = (
                    Unreachable(server.entry.address, "it is gone") if task.cancelled() else task.result()
                )
                if outcomes[server] is not None and ends is None:
                    self._end(current, f"{server.name}: {outcomes[server]}")
                    ends = time.monotonic() + BREAKUP_TIMEOUT_S
            if not done:
                for task in pending:
                    task.cancel()
        self._end(current, "")
        return outcomes

    def _end(self, current: BroadcastRound, why: str) -> None:
        if not current.over:
            current.over, current.why = True, why
            self._changed.notify()

    def _blame(self, version: int, faults: dict[ServerHandle, Exception]) -> None:
        """Finds the servers that caused a failure, which are left out of the next round: those that are gone or refuse.
        If there is none, it is the first that failed. `faults` are in the order in which they occurred."""
        own = [server for server, fault in faults.items() if not _is_broken(fault)]
        to_blame = own or list(faults)[:1]
        for server, fault in faults.items():
            if server in to_blame:
                self._failed(server, version, fault)
            else:
                log.info("%s did not get weights v%d: %s", server.name, version, fault)

    def _failed(self, server: ServerHandle, version: int, fault: Exception) -> None:
        member = self._members[server]
        member.is_alone, delay_s = True, RETRY_S
        if isinstance(fault, Unreachable):
            log.warning("%s does not answer: %s", server.name, fault)
            self._servers.check_now()
        elif isinstance(fault, HttpError) and not _is_broken(fault):
            count = member.refusals[version] = member.refusals.get(version, 0) + 1
            if count >= MAX_REFUSALS:
                raise Failure(f"{server.name} cannot serve weights v{version}: {fault.message}")
            log.warning("%s refuses weights v%d, which are sent again: %s", server.name, version, fault.message)
        else:
            member.breaks += 1
            if self._path.backend != GLOO:
                member.gpu_fault = f"a transfer by {self._path.backend} failed"
            if member.breaks >= MAX_BREAKUPS:
                times = f"the group was broken up {member.breaks} times in a row"
                raise Failure(f"{server.name} cannot receive weights v{version}, {times}: {fault}")
            log.warning("%s did not get weights v%d, which are sent again: %s", server.name, version, fault)
            delay_s = min(RETRY_S * 2 ** (member.breaks - 1), MAX_RETRY_S)
        member.not_before = time.monotonic() + delay_s

    async def _commit(self, server: ServerHandle, publication: Publication) -> None:
        try:
            await self._servers.commit(server, publication)
        finally:
            if server in self._members:
                self._members[server].busy = False
            self._servers.changed.notify()


async def _result(call: Awaitable[None]) -> Exception | None:
    try:
        await call
    except (HttpError, Unreachable) as fault:
        return fault
    return None


def _is_broken(fault: Exception) -> bool:
    """Whether a server only reports that the group was broken up."""
    return isinstance(fault, HttpError) and fault.status == 503


def _names(handles: Sequence[ServerHandle]) -> str:
    return ", ".join(server.name for server in handles)
