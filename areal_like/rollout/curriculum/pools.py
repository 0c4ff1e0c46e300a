"""The difficulty of each row, by the mean reward of its latest group: easy, normal or hard, or set aside."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from areal_like.data.row_table import RowTable
from areal_like.process.seeds import derive_seed
from areal_like.rollout.curriculum.pool_draw import ASIDE_EASY, ASIDE_HARD, EASY, HARD, NORMAL, PoolDraw
from areal_like.rollout.curriculum.scored_group import ScoredGroup
from areal_like.rollout.curriculum.settings import CurriculumSettings

NAMES = ("normal", "easy", "hard", "aside_easy", "aside_hard")
"""Of the pools, in metrics."""
LABELS = {"n": NORMAL, "e": EASY, "h": HARD}
"""Letters of rows that earlier results have sorted."""


class DifficultyPools:
    """The pool of each row. Rows that are set aside are not drawn."""

    name = "pools"

    def __init__(self, settings: CurriculumSettings, num_rows: int) -> None:
        self.settings = settings
        self.pool_R = np.full(num_rows, NORMAL, np.uint8)
        self._counts: Counter[str] = Counter()
        """Since the last metrics."""

    def start(self, labels: str) -> None:
        """From the results of an earlier run, a letter for each row."""
        letters = np.frombuffer(labels.encode("ascii"), np.uint8)
        for letter, pool in LABELS.items():
            self.pool_R[letters == ord(letter)] = pool

    def begin(self, table: RowTable, size: int, number: int) -> PoolDraw:
        keys = self.settings
        wanted = {EASY: int(size * keys.easy_fraction), HARD: int(size * keys.hard_fraction)}
        draws = np.random.Generator(np.random.PCG64(derive_seed(keys.seed, "draw", number)))
        return PoolDraw(self.pool_R, wanted, table, size, draws)

    def ended(self, drawn: int, size: int) -> None:
        """Where too few rows are left, those that are set aside are drawn again."""
        if drawn < size:
            self.pool_R[self.pool_R >= ASIDE_EASY] = NORMAL

    def observe(self, group: ScoredGroup) -> None:
        before, after = int(self.pool_R[group.row]), self._pool_of(group.mean_reward)
        self.pool_R[group.row] = after
        if before < ASIDE_EASY <= after:
            self._counts[NAMES[after].replace("aside", "evicted")] += 1
        if self.settings.has_pools and before < ASIDE_EASY:
            scores = group.scores
            self._counts[f"{NAMES[before]}/groups"] += 1
            self._counts[f"{NAMES[before]}/all_right"] += min(scores) >= 1
            self._counts[f"{NAMES[before]}/all_wrong"] += max(scores) <= 0

    def _pool_of(self, mean: float) -> int:
        keys = self.settings
        if keys.easy_threshold is not None and mean >= keys.easy_threshold:
            return ASIDE_EASY
        if keys.hard_threshold is not None and mean <= keys.hard_threshold:
            return ASIDE_HARD
        if not keys.has_pools:
            return NORMAL
        return EASY if mean > keys.easy_border else HARD if mean < keys.hard_border else NORMAL

    def rows_in(self, *pools: int) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(self.pool_R, pools))

    def state(self) -> bytes:
        return self.pool_R.tobytes()

    def resume(self, state: bytes, step: int) -> None:
        """As a checkpoint has it, with a fraction of the rows set aside drawn again."""
        self.pool_R = np.frombuffer(state, np.uint8).copy()
        keys = self.settings
        fractions = ((ASIDE_EASY, keys.easy_return_fraction), (ASIDE_HARD, keys.hard_return_fraction))
        for pool, fraction in fractions:
            rows = self.rows_in(pool)
            draws = np.random.Generator(np.random.PCG64(derive_seed(keys.seed, "returned", pool, step)))
            self.pool_R[draws.choice(rows, size=round(len(rows) * fraction), replace=False)] = NORMAL

    def metrics(self) -> dict[str, float]:
        """The number of rows in each pool, and the counts since the last call."""
        keys, sizes = self.settings, np.bincount(self.pool_R, minlength=len(NAMES))
        limits = {"evicted_easy": keys.easy_threshold, "evicted_hard": keys.hard_threshold}
        pools = NAMES[:ASIDE_EASY] if keys.has_pools else ()
        kinds = [f"{pool}/{kind}" for pool in pools for kind in ("groups", "all_right", "all_wrong")]
        counted = [*(name for name, limit in limits.items() if limit is not None), *kinds]
        counts, self._counts = self._counts, Counter()
        values = {**dict(zip(NAMES, sizes, strict=True)), **{name: counts[name] for name in counted}}
        return {f"curriculum/{name}": float(value) for name, value in values.items()}
