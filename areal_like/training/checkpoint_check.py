"""Verifies a checkpoint before it is loaded: the ranks share its files, and each reads its share once."""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from areal_like.process.checkpoint_files import OTHER_CONTENT, hash_blocks, manifest_parts, resume_problem
from areal_like.process.errors import Failure
from areal_like.process.hashed_files import FilePart
from areal_like.training.rank_vote import RankVote

ROUND_S = 10.0
"""The ranks tell each other how far they are after so many seconds: no wait is as long as the whole check."""

log = logging.getLogger(__name__)


def check_complete(checkpoint: Path, ranks: RankVote) -> None:
    """A damaged checkpoint is a failure that names what is wrong with it. All ranks must call it. They wait for each
    other on the CPU: a collective on GPUs would be ended by its watchdog while another rank still reads."""
    wrong = resume_problem(checkpoint)
    if wrong is None:
        parts = manifest_parts(checkpoint)
        share = SharedCheck(checkpoint, shares(parts, ranks.size)[ranks.rank])
        total = sum(part.bytes for part in parts.values())
        while left := ranks.sum(share.advance(ROUND_S), "how much of the checkpoint it still has to read"):
            log.info("%s: %.1f of %.1f GB are checked", checkpoint, (total - left) / 1e9, total / 1e9)
        found = [json.loads(text) for text in ranks.gather(json.dumps(share.problems), "damaged files")]
        wrong = "; ".join(problem for problems in found for problem in problems)
    if wrong:
        raise Failure(f"resume: cannot resume from {checkpoint}: {wrong}; choose another with resume_step")


def shares(parts: Mapping[str, FilePart], num: int) -> list[dict[str, FilePart]]:
    """The files, largest first, each to the share that has the fewest bytes: equal on all ranks."""
    made: list[dict[str, FilePart]] = [{} for _ in range(num)]
    sizes = [0] * num
    for name, part in sorted(parts.items(), key=lambda item: (-item[1].bytes, item[0])):
        place = sizes.index(min(sizes))
        made[place][name] = part
        sizes[place] += part.bytes
    return made


class SharedCheck:
    """The check of one rank's share."""

    def __init__(self, checkpoint: Path, parts: Mapping[str, FilePart]) -> None:
        self.problems: list[str] = []
        self._checkpoint, self._parts = checkpoint, parts
        self._left = sum(part.bytes for part in parts.values())
        self._blocks = self._read()

    def advance(self, seconds: float) -> int:
        """Reads for so long, and at least one block; returns how many bytes are left."""
        until = time.monotonic() + seconds
        for size in self._blocks:
            self._left -= size
            if time.monotonic() >= until:
                return max(1, self._left)
        return 0

    def _read(self) -> Iterator[int]:
        for name, part in self._parts.items():
            try:
                digest = yield from hash_blocks(self._checkpoint / name)
            except OSError as fault:
                self.problems.append(f"{self._checkpoint.name}/{name} cannot be read ({fault})")
                continue
            if digest != part.hash:
                self.problems.append(f"{self._checkpoint.name}/{name} {OTHER_CONTENT}")
