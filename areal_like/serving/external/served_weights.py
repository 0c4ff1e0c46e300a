"""Which weights the engine generates with, and whether they may be trusted."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from areal_like.weights.versions import NO_VERSION


class ServerBroken(Exception):
    """What is in the engine is not what it should be, and must not be served."""


class ServedWeights:
    """`version` is that of the newest weights. `adapter` is the name of the one that new groups take, None for the
    model by itself."""

    def __init__(self) -> None:
        self.version = NO_VERSION
        self.is_current = False
        """Whether the weights in use are those of the run as it is now."""
        self.adapter: str | None = None
        self.fault: str | None = None
        self._versions: dict[str, int] = {}
        self._users: Counter[str] = Counter()
        self._verified_version = NO_VERSION
        """The newest version that was looked at and found good."""
        self._verified = asyncio.Event()
        self._verified.set()

    @property
    def reported_version(self) -> int:
        """What may be said to be served: never what is in the engine and was not looked at yet."""
        return self._verified_version if self.is_current else NO_VERSION

    def forget(self) -> None:
        """The run went back to a checkpoint: what is in use is none of its weights, and an older version may come."""
        self.is_current, self.adapter = False, None

    # Base weights.

    def mark_swapped(self, version: int) -> None:
        """New ones are live, and nobody has looked at them yet: answers are held back until `trusted` or `broke`."""
        self._verified.clear()
        self.version, self.adapter = version, None

    def mark_verified(self) -> None:
        self.is_current, self._verified_version = True, self.version
        self._verified.set()

    def mark_broken(self, fault: str) -> None:
        self.fault = fault
        self._verified.set()

    async def verified(self) -> None:
        """Until it is known whether what was generated is good; raises Broken where it is not."""
        await self._verified.wait()
        if self.fault is not None:
            raise ServerBroken(self.fault)

    # Adapters.

    def add_adapter(self, name: str, version: int) -> None:
        self._versions[name] = version
        self.version, self.adapter, self.is_current, self._verified_version = version, name, True, version

    def take(self) -> str | None:
        """The adapter that a group uses until it gives it back."""
        if self.adapter is not None:
            self._users[self.adapter] += 1
        return self.adapter

    def give_back(self, adapter: str | None) -> None:
        if adapter is not None:
            self._users[adapter] -= 1

    def version_of(self, adapter: str | None) -> int:
        return self.version if adapter is None else self._versions[adapter]

    @property
    def num_adapters(self) -> int:
        """That are loaded."""
        return len(self._versions)

    def has(self, adapter: str) -> bool:
        return adapter in self._versions

    def unused(self) -> Sequence[str]:
        """Adapters that are loaded, and that no group needs any more."""
        return [name for name in self._versions if name != self.adapter and not self._users[name]]

    def remove_adapter(self, name: str) -> None:
        del self._versions[name]
        del self._users[name]
