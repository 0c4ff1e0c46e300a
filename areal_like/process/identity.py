"""Who a process is, how it says so to others, and how these tell what is left over from an earlier life."""

import hmac
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from areal_like.process.server_proof import make_proof

SERVER, REWARD, CONTROLLER, EPISODES, TRAINER = "server", "reward", "rollout", "episodes", "trainer"
"""Roles: what the processes of a run are, and the first part of their names."""

RUN_DIR, PROCESS, TOKEN = "AREAL_LIKE_RUN_DIR", "AREAL_LIKE_PROCESS", "AREAL_LIKE_TOKEN"
ATTEMPT, INCARNATION = "AREAL_LIKE_ATTEMPT", "AREAL_LIKE_INCARNATION"

RUN_ID = "AREAL_LIKE_RUN_ID"
"""By this a process is known to be of a run whose folder it does not know; a server of others reads it."""

PORT = "<port>"
"""Stands in a command for a number that is known when the process is started."""

PROCESS_HEADER, ATTEMPT_HEADER, INCARNATION_HEADER = "X-Areal-Process", "X-Areal-Attempt", "X-Areal-Incarnation"
RUN_HEADER = "X-Areal-Run"
"""In the answers of a server of others: `seal`, so that no other is taken for it."""


@dataclass(frozen=True)
class Identity:
    """`attempt` counts recoveries of the whole run, `incarnation` the starts of this one process within it."""

    role: str
    index: int
    attempt: int = 1
    incarnation: int = 1

    @property
    def name(self) -> str:
        return f"{self.role}/{self.index}"

    @property
    def file_name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def start_name(self) -> str:
        """Of files that belong to one start: `trainer-0`, `trainer-0.attempt-2` after a recovery of the whole run,
        `server-0.restart-2` for a process that was replaced by itself."""
        attempt = f".attempt-{self.attempt}" if self.attempt > 1 else ""
        restart = f".restart-{self.incarnation}" if self.incarnation > 1 else ""
        return f"{self.file_name}{attempt}{restart}"


def identity() -> Identity:
    """What the launcher said in the environment."""
    role, _, index = os.environ[PROCESS].partition("/")
    return Identity(role, int(index), int(os.environ.get(ATTEMPT, "1")), int(os.environ.get(INCARNATION, "1")))


def token() -> str:
    """The run's secret. It travels by environment alone."""
    return os.environ[TOKEN]


def start_id(variables: Mapping[str, str] = os.environ) -> str:
    """Which run, process and start of it this is."""
    life = f"{variables.get(ATTEMPT, '1')}.{variables.get(INCARNATION, '1')}"
    return f"{variables.get(RUN_ID, '')} {variables.get(PROCESS, '')} {life}"


def call_headers(me: Identity, secret: str) -> dict[str, str]:
    """What a call of ours carries."""
    return {
        "Authorization": f"Bearer {secret}",
        PROCESS_HEADER: me.name,
        ATTEMPT_HEADER: str(me.attempt),
        INCARNATION_HEADER: str(me.incarnation),
    }


class CallGuard:
    """Lets in who knows the token and is of the newest attempt and incarnation that was seen."""

    def __init__(self, secret: str, attempt: int = 0) -> None:
        self.attempt = attempt
        self.on_new_attempt: Callable[[int], None] | None = None
        self._token, self._secret = secret, f"Bearer {secret}"
        self._newest: dict[str, int] = {}

    def knows(self, said: Mapping[str, str]) -> bool:
        """Whether a call shows the token. A header may hold bytes that are no text."""
        shown = said.get("Authorization", "").encode(errors="surrogateescape")
        return hmac.compare_digest(shown, self._secret.encode())

    def prove(self, nonce: str, place: str) -> str | None:
        """That this server knows the token, to whoever asks it at that address and port."""
        return make_proof(self._token, nonce, place, "")

    def refuse(self, said: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and message for a call that must not be answered; None lets it in."""
        if not self.knows(said):
            return 401, "this route wants the run's token"
        name = said.get(PROCESS_HEADER, "?")
        try:
            attempt, incarnation = int(said.get(ATTEMPT_HEADER, "")), int(said.get(INCARNATION_HEADER, ""))
        except ValueError:
            return 400, f"a call must say its attempt and incarnation ({ATTEMPT_HEADER}, {INCARNATION_HEADER})"
        if attempt < self.attempt:
            return 409, f"{name} is of attempt {attempt}, and the run is at attempt {self.attempt}"
        if attempt > self.attempt:
            self.attempt = attempt
            self._newest.clear()
            if self.on_new_attempt is not None:
                self.on_new_attempt(attempt)
        if incarnation < self._newest.get(name, 0):
            return 409, f"{name} was started again since: this is its incarnation {incarnation}"
        self._newest[name] = incarnation
        return None
