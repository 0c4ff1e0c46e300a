"""Events about how far an evaluation is, of a run that only evaluates."""

import math
from collections.abc import Callable
from typing import Any

from areal_like.rollout.evaluation.evaluation import Evaluation

EVALUATING = "evaluating"
PROGRESS_S = 2.0
"""Between two events."""


class EvaluationProgress:
    def __init__(self, now: Callable[[], float], is_wanted: bool) -> None:
        self._now, self._is_wanted = now, is_wanted
        self._told_at = -math.inf

    def events(self, evaluation: Evaluation) -> list[dict[str, Any]]:
        """At most one: now and then, and at the end."""
        now = self._now()
        if not self._is_wanted or (evaluation.open and now - self._told_at < PROGRESS_S):
            return []
        self._told_at = now
        return [{"event": EVALUATING, **evaluation.progress()}]
