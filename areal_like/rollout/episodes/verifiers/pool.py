"""EnvironmentPool: the processes of one environment in an episodes worker."""

import asyncio
import logging
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from areal_like.config.problems import ConfigError
from areal_like.config.sections.environments import EnvironmentsConfig
from areal_like.data.verifiers.environment_process import HostedPackage, PackageProcess, take
from areal_like.rollout.episodes.text_environments.process import STARTS, EnvironmentFault
from areal_like.rollout.episodes.verifiers.seat import EnvironmentSeat

GB = 1e9

log = logging.getLogger(__name__)


class EnvironmentPool:
    """Has a process for each group that it plays, up to `environments.processes`. Groups wait for the first one; while
    the next one starts they play in those that there are. Where one has ended another starts."""

    def __init__(self, package: HostedPackage, settings: EnvironmentsConfig) -> None:
        memory = settings.max_memory_gb
        self._package, self._max_processes = package, settings.processes
        self._max_bytes = None if memory is None else int(memory * GB)
        self._seats: list[EnvironmentSeat] = []
        self._starting: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._num_groups = self._num_ended = 0

    async def play(
        self, request: dict[str, Any], limit_s: float, counts: Counter[str], times: AbstractContextManager[None]
    ) -> list[dict[str, Any]]:
        """The start of a process is counted, outside of the limit and of `times`. Raises TimeoutError."""
        self._num_groups += 1
        try:
            seat = await self._free_seat(counts)
            with times:
                async with asyncio.timeout(limit_s):
                    return await seat.play(request)
        finally:
            self._num_groups -= 1

    async def close(self) -> None:
        if (starting := self._starting) is not None:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await asyncio.gather(*(seat.close() for seat in self._seats), *self._closing)
        if (process := take(self._package)) is not None:
            await asyncio.to_thread(process.close)

    async def _free_seat(self, counts: Counter[str]) -> EnvironmentSeat:
        """Groups that wait for the first process share its failure."""
        self._remove_ended()
        self._start_more(counts)
        if not self._seats:
            assert self._starting is not None, "there are fewer processes than groups"
            await asyncio.shield(self._starting)
        return min(self._seats, key=lambda seat: seat.num_playing)

    def _remove_ended(self) -> None:
        for seat in [seat for seat in self._seats if seat.has_ended]:
            self._seats.remove(seat)
            self._num_ended += 1
            name, number = self._package.name, self._num_ended
            log.warning("environment %s: process %d that ended; another is started", name, number)
            closing = asyncio.create_task(seat.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _start_more(self, counts: Counter[str]) -> None:
        """One at a time."""
        if self._starting is None and len(self._seats) < min(self._num_groups, self._max_processes):
            counts[STARTS] += 1
            self._starting = asyncio.create_task(self._start(counts))
            self._starting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _start(self, counts: Counter[str]) -> None:
        try:
            self._seats.append(await self._new_seat())
        except Exception as fault:
            if not self._seats:
                raise
            name, number = self._package.name, len(self._seats)
            log.warning("environment %s: no process beside %d others: %s", name, number, fault)
            return
        finally:
            self._starting = None
        self._start_more(counts)

    async def _new_seat(self) -> EnvironmentSeat:
        process = take(self._package)
        if process is None:
            process = PackageProcess(self._package)
            loading = asyncio.create_task(asyncio.to_thread(process.load))
            try:
                await asyncio.shield(loading)
            except BaseException as fault:
                process.kill()
                await asyncio.gather(loading, return_exceptions=True)
                await asyncio.to_thread(process.close)
                if isinstance(fault, ConfigError):
                    raise EnvironmentFault(str(fault)) from fault
                raise
        seat = EnvironmentSeat(process, self._max_bytes)
        await seat.open()
        return seat
