"""The difficulty of each prompt, by the mean reward of its latest group: easy, normal or hard, or set aside."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_like.data.row_table import RowTable
from areal_like.process.errors import Failure
from areal_like.process.seeds import derive_seed
from areal_like.rollout.curriculum.base import OpenDraw
from areal_like.rollout.curriculum.environment_draw import EnvironmentDraw
from areal_like.rollout.curriculum.pool_draw import ASIDE_EASY, ASIDE_HARD, EASY, HARD, NORMAL, PoolDraw
from areal_like.rollout.curriculum.prompts import Prompts
from areal_like.rollout.curriculum.scored_group import ScoredGroup
from areal_like.rollout.curriculum.settings import CurriculumSettings

NAMES = ("normal", "easy", "hard", "aside_easy", "aside_hard")
"""Of the pools, in metrics."""
LABELS = {"n": NORMAL, "e": EASY, "h": HARD}
"""Letters of rows that earlier results have sorted."""


class DifficultyPools:
    """The pool of each prompt. Rows that are set aside are not drawn."""

    name = "pools"

    def __init__(self, settings: CurriculumSettings, prompts: Prompts) -> None:
        self.settings, self.prompts = settings, prompts
        self.pool_P = np.full(len(prompts), NORMAL, np.uint8)
        self._counts: Counter[str] = Counter()
        """Since the last metrics."""
        self._own_counts: Counter[tuple[int, str]] = Counter()
        """The same by environment."""

    def start(self, labels: str) -> None:
        """From the results of an earlier run, a letter for each row."""
        letters = np.frombuffer(labels.encode("ascii"), np.uint8)
        for letter, pool in LABELS.items():
            self.pool_P[self.prompts.prompt_R[letters == ord(letter)]] = pool

    def begin(self, table: RowTable, prompts: Prompts, size: int, number: int) -> OpenDraw:
        keys = self.settings
        if keys.by_environment:
            return self._by_environment(table, size, number)
        wanted = {EASY: int(size * keys.easy_fraction), HARD: int(size * keys.hard_fraction)}
        draws = np.random.Generator(np.random.PCG64(derive_seed(keys.seed, "draw", number)))
        return PoolDraw(self.pool_P, prompts, wanted, table, size, draws)

    def _by_environment(self, table: RowTable, size: int, number: int) -> EnvironmentDraw:
        sources, count = self.prompts.environment_P, max(1, len(self.prompts.names))
        rates = self.settings.rates or np.bincount(sources, minlength=count).tolist()
        is_drawn = self.pool_P < ASIDE_EASY
        rows = [self.prompts.first_P[is_drawn & (sources == source)] for source in range(count)]
        return EnvironmentDraw(rows, rates, table, size, derive_seed(self.settings.seed, "draw", number))

    def ended(self, drawn: int, size: int) -> None:
        """Where too few rows are left, those that are set aside are drawn again."""
        if drawn < size:
            self.pool_P[self.pool_P >= ASIDE_EASY] = NORMAL

    def observe(self, group: ScoredGroup) -> None:
        prompt = self.prompts.prompt_R[group.row]
        environment = int(self.prompts.environment_P[prompt])
        before, after = int(self.pool_P[prompt]), self._pool_of(group.mean_reward)
        self.pool_P[prompt] = after
        if before < ASIDE_EASY <= after:
            self._count(environment, NAMES[after].replace("aside", "evicted"), 1)
        if self.settings.has_pools and before < ASIDE_EASY:
            scores = group.scores
            self._count(environment, f"{NAMES[before]}/groups", 1)
            self._count(environment, f"{NAMES[before]}/all_right", min(scores) >= 1)
            self._count(environment, f"{NAMES[before]}/all_wrong", max(scores) <= 0)

    def _count(self, environment: int, name: str, more: int) -> None:
        self._counts[name] += more
        self._own_counts[environment, name] += more

    def _pool_of(self, mean: float) -> int:
        keys = self.settings
        if keys.easy_threshold is not None and mean >= keys.easy_threshold:
            return ASIDE_EASY
        if keys.hard_threshold is not None and mean <= keys.hard_threshold:
            return ASIDE_HARD
        if not keys.has_pools:
            return NORMAL
        return EASY if mean > keys.easy_border else HARD if mean < keys.hard_border else NORMAL

    def prompts_in(self, *pools: int) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(self.pool_P, pools))

    def state(self) -> bytes:
        return self.pool_P.tobytes()

    def resume(self, state: bytes, step: int) -> None:
        """As a checkpoint has it, with a fraction of the rows set aside drawn again."""
        if len(state) != len(self.pool_P):
            message = f"the checkpoint has pools of {len(state)} prompts, and the data has {len(self.pool_P)}"
            raise Failure(f"resume: {message}; set recover.skip_curriculum=true to begin without them")
        self.pool_P = np.frombuffer(state, np.uint8).copy()
        keys = self.settings
        if not keys.has_pools:  # those of another `curriculum.type`
            self.pool_P[self.prompts_in(EASY, HARD)] = NORMAL
        for pool, threshold in ((ASIDE_EASY, keys.easy_threshold), (ASIDE_HARD, keys.hard_threshold)):
            if threshold is None:
                self.pool_P[self.prompts_in(pool)] = NORMAL
        fractions = ((ASIDE_EASY, keys.easy_return_fraction), (ASIDE_HARD, keys.hard_return_fraction))
        for pool, fraction in fractions:
            aside = self.prompts_in(pool)
            draws = np.random.Generator(np.random.PCG64(derive_seed(keys.seed, "returned", pool, step)))
            self.pool_P[draws.choice(aside, size=round(len(aside) * fraction), replace=False)] = NORMAL

    def metrics(self) -> dict[str, float]:
        """Prompts in each pool, and counts since the last call; also of each of several environments."""
        keys = self.settings
        limits = {"easy": keys.easy_threshold, "hard": keys.hard_threshold}
        evicted = [f"evicted_{side}" for side, limit in limits.items() if limit is not None]
        pools = NAMES[:ASIDE_EASY] if keys.has_pools else ()
        kinds = [f"{pool}/{kind}" for pool in pools for kind in ("groups", "all_right", "all_wrong")]
        values = dict(zip(NAMES, self._sizes(slice(None)), strict=True))
        values |= {name: self._counts[name] for name in (*evicted, *kinds)}
        found = {f"curriculum/{name}": float(value) for name, value in values.items()}
        shown = {NAMES[0], *pools, *(f"aside_{name.removeprefix('evicted_')}" for name in evicted)}
        for number, environment in enumerate(self.prompts.names if len(self.prompts.names) > 1 else ()):
            sizes = zip(NAMES, self._sizes(self.prompts.environment_P == number), strict=True)
            found |= {f"env/{environment}/{name}": float(size) for name, size in sizes if name in shown}
            counts = {name: self._own_counts[number, name] for name in (*evicted, *kinds)}
            found |= {f"env/{environment}/{name}": float(count) for name, count in counts.items()}
        self._counts.clear()
        self._own_counts.clear()
        return found

    def _sizes(self, which: Any) -> NDArray[np.int64]:
        return np.bincount(self.pool_P[which], minlength=len(NAMES))
