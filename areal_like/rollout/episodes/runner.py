"""One lease from its row to its result: the workflow run, what it returned checked and packed, what it raised named."""

import copy
import logging
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from areal_like.data.datasets import Datasets
from areal_like.data.tokenizer import KEY
from areal_like.data.user_code import describe_error
from areal_like.rollout.episodes.episode import Episode, RowError, WorkerTools
from areal_like.rollout.episodes.generation_client import GenerationError, LeaseCancelled, Superseded
from areal_like.rollout.episodes.rewards.base import RewardError
from areal_like.rollout.episodes.trajectory_check import find_problem
from areal_like.rollout.episodes.workflows import Workflow
from areal_like.rollout.trajectory import Trajectory, pack_group

DONE, REJECTED, FAILED = "done", "rejected", "failed"
MAX_LOGGED_ERRORS = 100
"""So many different errors are told in the log, each once."""

ERROR_KINDS: dict[type[BaseException], str] = {RewardError: "reward", GenerationError: "server", RowError: "row"}
"""What a workflow let pass on its way up -> whose fault it was; anything else is the workflow's own."""

log = logging.getLogger(__name__)


class EpisodeResult(NamedTuple):
    """What the controller is told; `blob` has the arrays of a group that is done."""

    said: dict[str, Any]
    blob: bytes | None = None


@dataclass(frozen=True)
class EpisodeRunner:
    """Runs leases; one for each worker."""

    tools: WorkerTools
    datasets: Datasets
    workflow: Workflow
    check_format: bool
    told: set[str] = field(default_factory=set)

    async def run(self, lease: dict[str, Any]) -> EpisodeResult:
        began = time.monotonic()
        episode = Episode(self.tools, lease)
        episode.trace("begins: row %d of %s", lease["row"], lease["split"])
        said: dict[str, Any] = {"lease": lease["id"]}
        blob: bytes | None = None
        try:
            row = copy.deepcopy(self.datasets.of(lease["split"]).rows[lease["row"]])
            returned = await self.workflow.run(episode, row)
            if returned is None:
                said["status"] = REJECTED
            else:
                said["facts"], blob = self._pack(returned, lease)
                said["status"] = DONE
        except (Superseded, LeaseCancelled):
            raise
        except (Exception, SystemExit) as fault:
            said |= {"status": FAILED, "error_kind": _kind(fault), "error": self._words(fault, lease)}
            self._tell(fault, said)
        said["timings"] = {**episode.seconds, "total_s": time.monotonic() - began}
        episode.trace("ends: %s", said["status"])
        return EpisodeResult(said, blob)

    def _pack(self, returned: Any, lease: dict[str, Any]) -> tuple[list[dict[str, Any]], bytes]:
        if not isinstance(returned, list) or not all(isinstance(each, Trajectory) for each in returned):
            kinds = [type(each).__name__ for each in returned] if isinstance(returned, list) else None
            got = f"a list of {', '.join(sorted(set(kinds)))}" if kinds is not None else type(returned).__name__
            raise FormatError(f"run() returned {got}; return a list of Trajectory, or None to leave the row out")
        if self.check_format:
            found = find_problem(returned, self.tools.tokenizer.size, lease["sampling"])
            if found is not None:
                raise FormatError(f"run() returned {found}")
        try:
            return pack_group(returned)
        except ValueError as misfit:
            raise FormatError(f"run() returned what cannot be trained on: {misfit}") from misfit

    def _words(self, fault: BaseException, lease: dict[str, Any]) -> str:
        text = str(fault) if isinstance(fault, EXPLAINED_ERRORS) else describe_error(fault)
        if not isinstance(fault, RowError) or text.startswith(f"{KEY}: "):
            return text
        split: str = lease["split"]
        return f"{split}_dataset.path: {self.datasets.of(split).place(lease['row'])}: {text}"

    def _tell(self, fault: BaseException, said: dict[str, Any]) -> None:
        """Each error once, and with its traceback where that is of the user's code."""
        if said["error"] in self.told or len(self.told) >= MAX_LOGGED_ERRORS:
            return
        self.told.add(said["error"])
        trace = None if isinstance(fault, EXPLAINED_ERRORS) else fault
        log.warning(
            "lease %s failed (%s; told once): %s", said["lease"], said["error_kind"], said["error"], exc_info=trace
        )


class FormatError(ValueError):
    """A workflow returned something else than good trajectories."""


EXPLAINED_ERRORS: tuple[type[BaseException], ...] = (FormatError, *ERROR_KINDS)
"""Errors whose message tells all that there is to know."""


def _kind(fault: BaseException) -> str:
    return next((kind for known, kind in ERROR_KINDS.items() if isinstance(fault, known)), "workflow")
