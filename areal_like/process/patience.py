"""How long the processes of a run wait for one of another role. The one that hangs is killed first, by the watchdog or
because it is not ready in time; whoever waits for it is innocent, and has to last until its successor is ready."""

import math
from typing import Any, NamedTuple

from areal_like.process.identity import CONTROLLER, EPISODES, REWARD, SERVER
from areal_like.process.pulse import COMPILING, GENERATING, LOADING, PUBLISHING, SAVING, SERVING, UPDATING, WAITING

AUTO_S, BUSY_FACTOR = 300.0, 12.0
"""A limit of the watchdog that is `auto`, and how many times that it may become."""
MARGIN_S = 60.0
"""Other limits have so long to act first: their messages say more."""
PATIENCE_KEY = "rollout.setup_timeout"
"""What a wait names that is over all the same."""
REQUEST_KEY = "rollout.request_timeout"
ANSWER_KEYS = f"{REQUEST_KEY}, watchdog"
WORKING = (LOADING, COMPILING, PUBLISHING, SAVING)
"""Phases in which bytes count as progress, and CPU time for BUSY_FACTOR times the limit."""
OWES = (GENERATING, SERVING, UPDATING)
"""Phases of a server that owes answers."""
SILENT_S = 15.0
"""As long as a healthy server may take for what it counts next."""
SERVES = (LOADING, COMPILING, GENERATING, SERVING, UPDATING, WAITING)
PHASES_OF = {SERVER: SERVES, REWARD: SERVES, CONTROLLER: (LOADING, SERVING, WAITING), EPISODES: (LOADING, WAITING)}
"""Phases in which others wait for a process of that role; for an episodes worker only while it starts."""


class WaitLimit(NamedTuple):
    seconds: float
    key: str


class SilenceLimits(NamedTuple):
    """How long a server must have answered nobody at least, and may have at most, for what fails there to be its own
    fault, and no group's."""

    least_s: float = 0.0
    most_s: float = 0.0


def answer_limit(config: Any, *roles: str) -> WaitLimit:
    """Of a wait for what processes of these roles are asked to do: as long as one request may take, and until one that
    hangs has been replaced."""
    request = WaitLimit(float(config.rollout.request_timeout), REQUEST_KEY)
    return max(request, WaitLimit(patience_s(config, *roles), ANSWER_KEYS))


def silence_of_servers(config: Any) -> SilenceLimits:
    """Until a server that hangs is replaced; none where it is never killed."""
    limits_s = [limit_s for limit_s in (_longest_s(config, phase) for phase in OWES) if math.isfinite(limit_s)]
    replaced_s = max(limits_s) + MARGIN_S + float(config.rollout.setup_timeout) if limits_s else 0.0
    return SilenceLimits(min(config.rollout.request_timeout / 2, SILENT_S), replaced_s)


def patience_s(config: Any, *roles: str) -> float:
    """Until a process of these roles that hangs has been replaced; infinite if it is never killed."""
    longest_s = max(_longest_s(config, phase) for role in roles for phase in PHASES_OF[role])
    return longest_s + MARGIN_S + float(config.rollout.setup_timeout)


def _longest_s(config: Any, phase: str) -> float:
    """`auto` grows during a run, and other keys make it longer."""
    limit_s = getattr(config.watchdog, f"{phase}_s")
    if limit_s is None:
        return math.inf
    if not isinstance(limit_s, str):
        return float(limit_s) * (BUSY_FACTOR if phase in WORKING else 1)
    others_s = max(float(config.rollout.setup_timeout), float(config.weights.broadcast.timeout_s))
    return max(AUTO_S * BUSY_FACTOR, MARGIN_S + others_s)
