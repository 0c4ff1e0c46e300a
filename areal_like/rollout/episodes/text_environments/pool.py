"""Pools of environment processes: each instance plays one conversation at a time, and is used again."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from areal_like.rollout.episodes.text_environments.process import EnvironmentProcess, InstanceSpec

GB = 1e9


class EnvironmentPools:
    """Those of a worker, one for each environment with its arguments and limits. `folders` are searched for the user's
    own; `level` is that of the environments' logs; `max_memory_gb` limits each process."""

    def __init__(
        self, folders: tuple[Path, ...] = (), level: str = "warning", max_memory_gb: float | None = None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._folders, self._level = folders, level
        self._max_bytes = None if max_memory_gb is None else int(max_memory_gb * GB)
        self._cwd = folders[-1] if folders else None
        self._pools: dict[InstanceSpec, _Pool] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def instance(self, spec: InstanceSpec) -> AsyncIterator[EnvironmentProcess]:
        """Waits until one is free. After a fault another process takes its place."""
        pool = self._pools.setdefault(spec, _Pool(spec.max_processes))
        async with pool.free:
            process = pool.idle.pop() if pool.idle else None
            if process is not None and not process.is_usable:
                self._end(process)
                process = None
            is_new = process is None
            if process is None:
                process = await EnvironmentProcess.start(spec, self._cwd, self.counts)
            try:
                if is_new:
                    await process.open(self._folders, self._level, self._max_bytes)
                yield process
            finally:
                if process.is_usable:
                    pool.idle.append(process)
                else:
                    self._end(process)

    def _end(self, process: EnvironmentProcess) -> None:
        process.end()
        ending = asyncio.create_task(process.ended())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends all that are not in use."""
        for pool in self._pools.values():
            while pool.idle:
                self._end(pool.idle.pop())
        await asyncio.gather(*self._ending)


class _Pool:
    def __init__(self, max_processes: int) -> None:
        self.free = asyncio.Semaphore(max_processes)
        self.idle: list[EnvironmentProcess] = []
