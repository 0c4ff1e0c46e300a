"""Work in a thread of an engine's worker, during generation, and how it reports its result."""

import threading
from collections.abc import Callable
from typing import Any

from areal_like.weights.errors import BadWeights, GroupBroken

BUSY, REFUSED, GROUP_BROKEN, FAILED = "busy", "refused", "group_broken", "failed"
"""Keys of results: it goes on, the weights are bad, they did not arrive, another error."""


class BackgroundJob:
    def __init__(self) -> None:
        self.result: dict[str, Any] = {BUSY: True}

    def start(self, work: Callable[[], dict[str, Any]]) -> None:
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], dict[str, Any]]) -> None:
        try:
            self.result = work()
        except BadWeights as bad:
            self.result = {REFUSED: str(bad)}
        except GroupBroken as broken:
            self.result = {GROUP_BROKEN: str(broken)}
        except Exception as error:  # `EngineWorkers` reports it
            self.result = {FAILED: f"{type(error).__name__}: {error}"}


def result_of(job: BackgroundJob | None) -> dict[str, Any]:
    return {REFUSED: "the staged weights were discarded"} if job is None else job.result
