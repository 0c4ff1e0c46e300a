"""Store for torch's process groups: in the trainer's process, or through a member's connection."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store as TorchStore

from areal_like.weights.group_member import GroupMember, as_bytes, as_text
from areal_like.weights.group_server import KeyValueStore

PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02


class RemoteKeyValueStore:
    """A KeyValueStore through a member's connection."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def set(self, key: str, value: bytes) -> None:
        self._member.ask(do="set", key=key, value=as_text(value))

    def get(self, key: str) -> bytes | None:
        text = self._member.ask(do="get", key=key)
        return None if text is None else as_bytes(text)

    def add(self, key: str, number: int) -> int:
        return int(self._member.ask(do="add", key=key, value=number))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return as_bytes(self._member.ask(do="compare_set", key=key, expected=as_text(expected), value=as_text(desired)))


class GroupStore(TorchStore):
    """Adapter to torch's Store. Errors are RuntimeErrors, as in torch's stores."""

    def __init__(self, values: KeyValueStore | RemoteKeyValueStore, timeout_s: float) -> None:
        super().__init__()
        self._values, self._timeout_s = values, timeout_s

    def set(self, key: str, value: Any) -> None:
        self._values.set(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        value = self._values.get(key)
        assert value is not None, "keys are never removed"
        return value

    def add(self, key: str, number: int) -> int:
        return self._values.add(key, number)

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._values.get(key) is not None for key in keys)

    def wait(self, keys: Sequence[str], limit: timedelta | None = None) -> None:
        limit_s = self._timeout_s if limit is None else limit.total_seconds()
        began, pause_s = time.monotonic(), PAUSE_S
        while not self.check(keys):
            if time.monotonic() - began > limit_s:
                raise RuntimeError(f"waited {limit_s:g} s for {', '.join(keys)} of other members")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        before, after = (each.encode() if isinstance(each, str) else bytes(each) for each in (expected, desired))
        return self._values.compare_set(key, before, after)
