"""Which published versions stay in files: the newest ones, and those that evaluations wait for."""

from collections.abc import Callable, Sequence

from areal_like.config.allocation.models import num_evaluators
from areal_like.process.run import Run
from areal_like.weights.disk import remove_versions
from areal_like.weights.publication_root import publication_root

VERSIONS_KEPT = 3
"""The newest, one that a server may still be loading, and one before."""


class KeptVersions:
    def __init__(self, run: Run, num_bytes: int) -> None:
        """`num_bytes`: of one version."""
        config = run.config
        # One of each dataset that is due, and the one that is evaluated.
        awaited = 2 + len(config.evaluator.benchmarks) if num_evaluators(config) else 0
        self.root, self.reason = publication_root(run, config.cluster.n_nodes > 1, num_bytes, awaited)
        self._awaited: frozenset[int] = frozenset()

    def keep(self, awaited: Sequence[int]) -> None:
        """Until the next call."""
        self._awaited = frozenset(awaited)

    def remove_others(self, newest: int, require: Callable[[], None]) -> None:
        remove_versions(self.root, {*self._awaited, *range(newest - VERSIONS_KEPT + 1, newest + 1)}, require)
