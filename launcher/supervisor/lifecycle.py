"""What a supervised run is for, how long it may wait, and how it ended."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from areal_like.process.identity import CONTROLLER, TRAINER


def _nothing(*_: object) -> None:
    pass


class Lifecycle(NamedTuple):
    """What a run is for. It ends with the processes of the roles `vital`; where it has none, when it is stopped.
    `trains`: a stop makes a checkpoint first. `on_addresses` is called with those of the servers once all are ready,
    and when they change; `rewind_metrics(step, attempt)` at a rollback; `on_start` when all processes are started;
    `on_poll` repeatedly."""

    trains: bool = True
    vital: Sequence[str] = (CONTROLLER, TRAINER)
    on_addresses: Callable[[Sequence[str]], None] = _nothing
    rewind_metrics: Callable[[int, int], None] = _nothing
    on_start: Callable[[], None] = _nothing
    on_poll: Callable[[], None] = _nothing


class WaitLimits(NamedTuple):
    """`setup_key` sets `setup_s`; `grace_s` is recover.grace_s."""

    setup_s: float
    setup_key: str
    grace_s: float


def wait_limits(config: Any) -> WaitLimits:
    """The timeouts of a run and the keys that set them."""
    rollout = getattr(config, "rollout", None)
    trained = "actor" if rollout is not None else "model"
    dist_timeout_s = float(getattr(config, trained).dist_timeout_s)
    if rollout is None:
        return WaitLimits(dist_timeout_s, f"{trained}.dist_timeout_s", config.recover.grace_s)
    return WaitLimits(rollout.setup_timeout, "rollout.setup_timeout", config.recover.grace_s)


class RunEnding(NamedTuple):
    """How a run ended. `outcome`: done, failed, refused, stopped, interrupted, or lost (another launcher may have
    taken over its name and directory)."""

    outcome: str
    code: int
    message: str = ""
    is_complete: bool = False
    """Whether `message` comes from the process itself, so that its log adds nothing."""
