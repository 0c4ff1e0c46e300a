"""Identity of a process: role, index, attempt and incarnation; the headers that carry it, and the check of calls."""

import hmac
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from areal_like.process.server_proof import make_proof

SERVER, REWARD, CONTROLLER, EPISODES, TRAINER = "server", "reward", "rollout", "episodes", "trainer"
"""Roles of processes, and the first part of their names."""

RUN_DIR, PROCESS, TOKEN = "AREAL_LIKE_RUN_DIR", "AREAL_LIKE_PROCESS", "AREAL_LIKE_TOKEN"
ETCD_PASSWORD = "ETCDCTL_PASSWORD"
SECRETS = (TOKEN, ETCD_PASSWORD)
"""Variables that the code of others does not see: rewards and environments may run what a model wrote."""
KEY_VARIABLE = "AREAL_LIKE_KEY_VARIABLE"
"""Names one more, with the key of the servers that the run has attached: it opens all their routes."""
TOKEN_DESCRIPTOR = "AREAL_LIKE_TOKEN_DESCRIPTOR"
"""Number of an open file from which a process reads the token, instead of TOKEN: what a process starts can read the
environment that it was started with."""
ATTEMPT, INCARNATION = "AREAL_LIKE_ATTEMPT", "AREAL_LIKE_INCARNATION"

RUN_ID = "AREAL_LIKE_RUN_ID"
"""Marks the processes of a run, also those that do not know its directory, such as an external engine."""

START_AFTER = "AREAL_LIKE_START_AFTER"
"""Name of the process that has to be ready before this one uses the GPU that they share."""
GPU_SHARE = "AREAL_LIKE_GPU_SHARE"
"""Fraction of that GPU which this process may take, where the other one needs the rest from time to time."""
KEEPS_COPY_ON_GPU = "AREAL_LIKE_KEEPS_COPY_ON_GPU"
"""Set for a trainer whose GPU has room for a copy of the weights, from which they are sent."""
STAGED_BYTES = "AREAL_LIKE_STAGED_BYTES"
"""Bytes of each GPU of an engine that the plan leaves to new weights until they are applied."""

PORT = "<port>"
"""Placeholder in a command for a port that is chosen when the process starts."""

PROCESS_HEADER, ATTEMPT_HEADER, INCARNATION_HEADER = "X-Areal-Process", "X-Areal-Attempt", "X-Areal-Incarnation"
RUN_HEADER = "X-Areal-Run"
"""Carries `start_id` in the answers of an external engine, which identifies it."""


@dataclass(frozen=True)
class Identity:
    """`attempt` counts recoveries of the whole run, `incarnation` starts of this process within the attempt."""

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
        """Stem of files of one start: `trainer-0`, `trainer-0.attempt-2` after a recovery of the run,
        `server-0.restart-2` for a process that was replaced alone."""
        attempt = f".attempt-{self.attempt}" if self.attempt > 1 else ""
        restart = f".restart-{self.incarnation}" if self.incarnation > 1 else ""
        return f"{self.file_name}{attempt}{restart}"


def identity() -> Identity:
    """This process's identity, from the launcher's environment variables."""
    role, _, index = os.environ[PROCESS].partition("/")
    return Identity(role, int(index), int(os.environ.get(ATTEMPT, "1")), int(os.environ.get(INCARNATION, "1")))


def launched_attempt() -> int | None:
    """The attempt for which the launcher has started this process; None for one that is started by hand."""
    return int(os.environ[ATTEMPT]) if ATTEMPT in os.environ else None


def launched_owner() -> str:
    """The id of the run that the launcher of this process has started; empty for one that is started by hand."""
    return os.environ.get(RUN_ID, "") if ATTEMPT in os.environ else ""


_taken = ""


def token() -> str:
    """The run's secret: as the launcher passes it, else from the environment, as for a process started by hand."""
    return _taken or os.environ[TOKEN]


def has_token() -> bool:
    return bool(_taken) or TOKEN in os.environ


def taken_token() -> str:
    """Empty if none was passed by a descriptor."""
    return _taken


def take_token() -> None:
    """Reads the token from the descriptor that the launcher has passed, and closes it, before user code runs."""
    global _taken
    descriptor = os.environ.pop(TOKEN_DESCRIPTOR, None)
    if descriptor is not None:
        with open(int(descriptor), "rb") as file:
            _taken = file.read().decode()


def hide_key(rollout: Any) -> None:
    """Of attached servers, if `rollout` has some: from the code of others, which is started from now on."""
    os.environ[KEY_VARIABLE] = rollout.api_key_var if rollout.server_addresses else ""


def shown_variables(settings: bytes = b"") -> dict[str, str]:
    """The environment for the code of others. `settings` are its own, as JSON: one that names the variable of the key,
    such as `api_key_var` of a judge, needs it."""
    key = os.environ.get(KEY_VARIABLE, "")
    hidden = SECRETS if f'"{key}"'.encode() in settings else (*SECRETS, key)
    return {name: value for name, value in os.environ.items() if name not in hidden}


@contextmanager
def passed_token(secret: str) -> Iterator[int]:
    """A descriptor with the token, for a child that is started meanwhile."""
    with open(os.memfd_create("token"), "wb", buffering=0) as file:
        file.write(secret.encode())
        file.seek(0)
        yield file.fileno()


def start_id(variables: Mapping[str, str] = os.environ) -> str:
    """Identifies one start of one process: run, process, attempt and incarnation."""
    start = f"{variables.get(ATTEMPT, '1')}.{variables.get(INCARNATION, '1')}"
    return f"{variables.get(RUN_ID, '')} {variables.get(PROCESS, '')} {start}"


def call_headers(me: Identity, secret: str) -> dict[str, str]:
    """Headers of every call between processes of the run."""
    return {
        "Authorization": f"Bearer {secret}",
        PROCESS_HEADER: me.name,
        ATTEMPT_HEADER: str(me.attempt),
        INCARNATION_HEADER: str(me.incarnation),
    }


class CallGuard:
    """Accepts calls that show the token and come from the newest attempt and incarnation seen so far."""

    def __init__(self, secret: str, attempt: int = 0) -> None:
        self.attempt = attempt
        self.on_new_attempt: Callable[[int], None] | None = None
        self._token, self._secret = secret, f"Bearer {secret}"
        self._newest: dict[str, int] = {}

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether a call shows the token. A header may hold bytes that are not text."""
        shown = headers.get("Authorization", "").encode(errors="surrogateescape")
        return hmac.compare_digest(shown, self._secret.encode())

    def prove(self, nonce: str, endpoint: str) -> str | None:
        """Proof that this server knows the token, for a client that called that address and port."""
        return make_proof(self._token, nonce, endpoint, "")

    def refuse(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and message for a call that is refused; None accepts it."""
        if not self.knows(headers):
            return 401, "this route requires the run's token"
        name = headers.get(PROCESS_HEADER, "?")
        try:
            attempt, incarnation = int(headers.get(ATTEMPT_HEADER, "")), int(headers.get(INCARNATION_HEADER, ""))
        except ValueError:
            return 400, f"a call must state its attempt and incarnation ({ATTEMPT_HEADER}, {INCARNATION_HEADER})"
        if attempt < self.attempt:
            return 409, f"{name} is of attempt {attempt}, and the run is at attempt {self.attempt}"
        if attempt > self.attempt:
            self.attempt = attempt
            self._newest.clear()
            if self.on_new_attempt is not None:
                self.on_new_attempt(attempt)
        if incarnation < self._newest.get(name, 0):
            return 409, f"{name} was restarted since: this call is from incarnation {incarnation}"
        self._newest[name] = incarnation
        return None
