"""Groups that are generated together and in a fixed order, so that what comes out does not depend on time."""

from typing import Any

from areal_like.rollout.groups import Group, Result


class SyncBatch:
    """A group goes to the server that its number says. Each server gets its share under one key, and every group of
    the share says its place in it. If anything breaks, the whole wave is generated again under another key."""

    def __init__(self, stem: str, groups: list[Group], num_servers: int) -> None:
        self.stem, self.groups, self.num_servers = stem, sorted(groups), num_servers
        self.tries = 0
        self.waiting: list[Group] = []
        self.results: dict[int, Result] = {}
        self._places: dict[int, tuple[int, int]] = {}
        shares: dict[int, list[Group]] = {}
        for group in self.groups:
            shares.setdefault(self.server_of(group), []).append(group)
        for share in shares.values():
            self._places |= {group.number: (place, len(share)) for place, group in enumerate(share)}
        self.start_again()

    def start_again(self) -> None:
        self.tries += 1
        self.waiting = self.groups[::-1]
        self.results.clear()

    def server_of(self, group: Group) -> int:
        """Its place among the servers."""
        return group.number % self.num_servers

    def slot_of(self, group: Group) -> dict[str, Any]:
        place, of = self._places[group.number]
        return {"key": f"{self.stem}.{self.tries}", "place": place, "of": of}

    @property
    def is_complete(self) -> bool:
        return len(self.results) == len(self.groups)
