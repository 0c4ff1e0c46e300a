"""Rows of an environment of the package verifiers, which plays them itself."""

from collections.abc import Sequence
from typing import Any

from areal_like.data.tasks.base import TEST, Row
from areal_like.data.user_code import SearchFolders
from areal_like.data.verifiers.environment_process import HostedPackage, loaded_process, park, take


class EnvironmentRows:
    """A task whose rows come from the environment's process."""

    def __init__(self, package: HostedPackage) -> None:
        self._package = package

    def rows(self, split: str) -> Sequence[Row]:
        """Where an environment has no held-out rows, these are its training rows."""
        process = take(self._package) or loaded_process(self._package)
        try:
            rows = process.rows(held_out=split == TEST)
        except BaseException:
            process.close()
            raise
        park(process)
        return rows


def hosted_package(
    task: str, args: dict[str, Any], python: str | None, places: SearchFolders, limit_s: float | None
) -> HostedPackage:
    return HostedPackage(task, args, python, tuple(str(folder) for folder in places), limit_s)
