"""Keys that the user set and that this run does not read.

Keys of the command line give a warning. Keys in the body of a file, for another algorithm or engine than the chosen
one, are only listed in the full plan: such a file is used with several.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, starts_servers
from areal_like.config.checks.config_checks import NO_EFFECT_CHECKS
from areal_like.config.checks.registry import run_checks
from areal_like.config.engines import default_engine, engine_names
from areal_like.config.problems import Problem, Stage
from launcher.plan.changes import BODY, OVERRIDE, is_set_by_user
from launcher.plan.plan import UnreadFileValue
from launcher.plan.reward_model import has_reward_model

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

ALGORITHM = "algorithm"
"""The group that chooses a whole algorithm, and the section that it sets."""
ALGORITHM_SECTION = "actor."
EVALUATION_SECTION = "evaluator."
CHOOSES = "task.name"
"""The key by which a group chooses a task; other keys of the group are not set by the user."""


def unread_values(loaded: "Loaded") -> list[Problem]:
    """Values without effect that the user wrote for this run."""
    found = run_checks(NO_EFFECT_CHECKS, {"config": loaded.config}, Stage.NO_EFFECT)
    return [
        problem
        for problem in found
        if not _is_written_for_another(loaded, problem.key)
        and (problem.key == CHOOSES or is_set_by_user(loaded, problem.key))
    ]


def typed_keys_of_other_engines(loaded: "Loaded", allocation: Allocation) -> Iterator[Problem]:
    typed = [key for key in _of_other_engines(loaded, allocation) if loaded.origin(key).kind == OVERRIDE]
    if typed and allocation.rollout is not None:
        have = "has" if len(typed) == 1 else "have"
        yield Problem(", ".join(typed), f"{have} no effect: the inference engine is {allocation.rollout.backend}")


def unread_file_values(loaded: "Loaded", allocation: Allocation | None) -> tuple[UnreadFileValue, ...]:
    """Keys in the body of the file, ordered by reason."""
    found = run_checks(NO_EFFECT_CHECKS, {"config": loaded.config}, Stage.NO_EFFECT)
    unread = [(problem.key, problem.message) for problem in found if _is_written_for_another(loaded, problem.key)]
    if allocation is not None and allocation.rollout is not None:
        why = f"has no effect: the inference engine is {allocation.rollout.backend}"
        engines = _of_other_engines(loaded, allocation)
        unread += [(key, why) for key in engines if loaded.origin(key).kind == BODY]
    text = loaded.redactor.text
    return tuple(UnreadFileValue(key, text(why), text(loaded.origin(key).where)) for key, why in unread)


def _is_written_for_another(loaded: "Loaded", key: str) -> bool:
    """Whether the file sets the key for its algorithm or its evaluation, and the command line chose another algorithm
    or no evaluation. A resumed run has the algorithm that its first command line chose."""
    if loaded.origin(key).kind != BODY:
        return False
    if key.startswith(EVALUATION_SECTION):
        return loaded.config.valid_dataset is None and loaded.origin("valid_dataset").kind == OVERRIDE
    chosen = loaded.config.resume is not None or any(word.partition("=")[0] == ALGORITHM for word in loaded.overrides)
    return key.startswith(ALGORITHM_SECTION) and chosen


def _of_other_engines(loaded: "Loaded", allocation: Allocation | None) -> list[str]:
    """Keys in sections of engines that this run does not use. A reward model is served by the default one."""
    config = loaded.config
    if allocation is None or allocation.rollout is None or not generates(config) or not starts_servers(config):
        return []
    running = {allocation.rollout.backend, *([default_engine().name] if has_reward_model(config) else [])}
    running |= {allocation.evaluators.backend} if allocation.evaluators else set()
    others = tuple(f"{name}." for name in engine_names() if name not in running)
    return [key for key in loaded.provenance.history if key.startswith(others)]
