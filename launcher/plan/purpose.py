"""What a plan is for."""

from enum import StrEnum


class Purpose(StrEnum):
    """The command that starts it. `serve`: only servers. `try`: servers, and a process that sends rows to them.
    `rewards`: the server of a reward model, and a process that scores saved answers by it."""

    RUN = "run"
    SERVE = "serve"
    TRY = "try"
    REWARDS = "rewards"

    @property
    def trains(self) -> bool:
        return self is Purpose.RUN
