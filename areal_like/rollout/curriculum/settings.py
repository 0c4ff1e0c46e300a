"""Settings of the curriculum, taken from the configuration."""

from dataclasses import dataclass, field
from typing import Any

from areal_like.config.environments import frequencies
from areal_like.config.sections.curriculum import BY_ENVIRONMENT, ONLINE, POOLS
from areal_like.rollout.curriculum.admission import Admission


@dataclass(frozen=True, kw_only=True)
class CurriculumSettings:
    """`draws`: rows are drawn at random; else they come in the order of the data."""

    draws: bool = False
    seed: int = 1
    easy_fraction: float = 0.0
    hard_fraction: float = 0.0
    """Of a batch; the others are normal rows. Both 0: of all rows alike."""
    easy_border: float = 1.0
    hard_border: float = 0.0
    easy_threshold: float | None = None
    hard_threshold: float | None = None
    easy_return_fraction: float = 0.0
    hard_return_fraction: float = 0.0
    has_pools: bool = False
    by_environment: bool = False
    """Each row is drawn by itself: first its environment, by these rates, then any row of it."""
    rates: tuple[float, ...] | None = None
    """None: by the number of rows of each environment."""
    admission: Admission = field(default_factory=Admission)
    has_own_gates: bool = False

    @property
    def has_gates(self) -> bool:
        """Whether finished groups may be left out."""
        return self.has_own_gates or self.admission.is_limited


def curriculum_settings(config: Any) -> CurriculumSettings:
    keys, environments = config.curriculum, config.environments
    rates = frequencies(environments.mix, environments.train)
    has_pools, is_online = keys.type == POOLS, keys.type == ONLINE
    return CurriculumSettings(
        draws=keys.type != "none",
        seed=config.seed if keys.seed is None else keys.seed,
        easy_fraction=keys.easy_fraction if has_pools else 0.0,
        hard_fraction=keys.hard_fraction if has_pools else 0.0,
        easy_border=keys.easy_border,
        hard_border=keys.hard_border,
        easy_threshold=keys.easy_threshold,
        hard_threshold=keys.hard_threshold,
        easy_return_fraction=keys.easy_return_fraction,
        hard_return_fraction=keys.hard_return_fraction,
        has_pools=has_pools,
        by_environment=keys.type == BY_ENVIRONMENT,
        rates=None if rates is None else tuple(rates),
        admission=Admission(
            keys.min_reward if is_online else None,
            keys.max_reward if is_online else None,
            keys.online_difficulty_filtering,
        ),
        has_own_gates=bool(keys.gates),
    )
