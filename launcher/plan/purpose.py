"""What a plan is for."""

from enum import StrEnum


class Purpose(StrEnum):
    """The command that starts it. `serve`: only servers. `try`: servers, and a process that sends rows to them."""

    RUN = "run"
    SERVE = "serve"
    TRY = "try"

    @property
    def trains(self) -> bool:
        return self is Purpose.RUN
