"""EnvironmentPool: the processes of one environment in an episodes worker."""

import asyncio
import logging
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from areal_like.config.problems import ConfigError
from areal_like.config.sections.environments import EnvironmentsConfig
from areal_like.data.verifiers.environment_process import HostedPackage, PackageProcess, take
from areal_like.rollout.episodes.agents.base import AgentError
from areal_like.rollout.episodes.text_environments.process import STARTS
from areal_like.rollout.episodes.verifiers.seat import EnvironmentSeat

GB = 1e9

log = logging.getLogger(__name__)


class EnvironmentPool:
    """Starts processes as they are needed, up to `environments.processes`, and another one where one has ended."""

    def __init__(self, package: HostedPackage, settings: EnvironmentsConfig) -> None:
        memory = settings.max_memory_gb
        self._package, self._max_processes = package, settings.processes
        self._max_bytes = None if memory is None else int(memory * GB)
        self._seats: list[EnvironmentSeat] = []
        self._starting = asyncio.Lock()
        self._num_ended = 0

    async def play(
        self, request: dict[str, Any], limit_s: float, counts: Counter[str], times: AbstractContextManager[None]
    ) -> list[dict[str, Any]]:
        """The start of a process is counted, outside of the limit and of `times`. Raises TimeoutError."""
        seat = await self._free_seat(counts)
        with times:
            async with asyncio.timeout(limit_s):
                return await seat.play(request)

    async def close(self) -> None:
        await asyncio.gather(*(seat.close() for seat in self._seats))
        if (process := take(self._package)) is not None:
            await asyncio.to_thread(process.close)

    async def _free_seat(self, counts: Counter[str]) -> EnvironmentSeat:
        async with self._starting:
            await self._remove_ended()
            seats = self._seats
            if not seats or (len(seats) < self._max_processes and all(seat.num_playing for seat in seats)):
                counts[STARTS] += 1
                seats.append(await self._new_seat())
            return min(seats, key=lambda seat: seat.num_playing)

    async def _remove_ended(self) -> None:
        for seat in [seat for seat in self._seats if seat.has_ended]:
            self._seats.remove(seat)
            self._num_ended += 1
            name, number = self._package.name, self._num_ended
            log.warning("environment %s: process %d that ended; another is started", name, number)
            await seat.close()

    async def _new_seat(self) -> EnvironmentSeat:
        process = take(self._package)
        if process is None:
            process = PackageProcess(self._package)
            try:
                await asyncio.to_thread(process.load)
            except ConfigError as fault:
                await asyncio.to_thread(process.close)
                raise AgentError(str(fault)) from fault
            except asyncio.CancelledError:
                process.kill()
                raise
        seat = EnvironmentSeat(process, self._max_bytes)
        await seat.open()
        return seat
