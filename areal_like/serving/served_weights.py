"""The weights that the engine serves: version, adapter, and whether they are verified or broken."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from areal_like.serving.engines.base import EngineGone
from areal_like.weights.versions import NO_VERSION


class ServerBroken(EngineGone):
    """The engine has wrong weights, which must not be served: this server ends."""


class ServedWeights:
    """`version` is that of the newest weights; `adapter` is used by new groups, None for the base model."""

    def __init__(self) -> None:
        self.version = NO_VERSION
        self.is_current = False
        """Whether the served weights belong to the run's current attempt."""
        self.adapter: str | None = None
        self.fault: str | None = None
        self._versions: dict[str, int] = {}
        self._users: Counter[str] = Counter()
        self._verified_version = NO_VERSION
        """The newest verified version."""
        self._verified = asyncio.Event()
        self._verified.set()

    @property
    def reported_version(self) -> int:
        """The version reported as served: never one that is loaded and not verified yet."""
        return self._verified_version if self.is_current else NO_VERSION

    def forget(self) -> None:
        """The run went back to a checkpoint: the loaded weights are none of its own, and an older version may come."""
        self.is_current, self.adapter = False, None

    # Base weights.

    def mark_swapped(self, version: int) -> None:
        """New weights are live. Answers are held back until `mark_verified` or `mark_broken`."""
        self._verified.clear()
        self.version, self.adapter = version, None

    def mark_verified(self) -> None:
        self.is_current, self._verified_version = True, self.version
        self._verified.set()

    def mark_broken(self, fault: str) -> None:
        self.fault = fault
        self._verified.set()

    async def verified(self) -> None:
        """Waits until the weights are verified; raises ServerBroken if they are wrong."""
        await self._verified.wait()
        if self.fault is not None:
            raise ServerBroken(self.fault)

    # Adapters.

    def add_adapter(self, name: str, version: int) -> None:
        self._versions[name] = version
        self.version, self.adapter, self.is_current, self._verified_version = version, name, True, version

    def acquire_adapter(self) -> str | None:
        """The adapter that a group uses until it releases it."""
        if self.adapter is not None:
            self._users[self.adapter] += 1
        return self.adapter

    def release_adapter(self, adapter: str | None) -> None:
        if adapter is not None:
            self._users[adapter] -= 1

    def version_of(self, adapter: str | None) -> int:
        return self.version if adapter is None else self._versions[adapter]

    @property
    def num_adapters(self) -> int:
        """Loaded adapters."""
        return len(self._versions)

    def has(self, adapter: str) -> bool:
        return adapter in self._versions

    def unused(self) -> Sequence[str]:
        """Loaded adapters that no group needs any more."""

        return [name for name in self._versions if name != self.adapter and not self._users[name]]

    def remove_adapter(self, name: str) -> None:
        del self._versions[name]
        del self._users[name]
