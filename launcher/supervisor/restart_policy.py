"""Decides what follows when a process ends: restart it alone, roll the run back, or fail. Pure.

server, reward, episodes   restarted alone; their work runs again
controller, trainer        the whole run goes back to the newest complete checkpoint
"""

from typing import NamedTuple

from areal_like.process.errors import DAMAGED, ProgramKilled
from areal_like.process.exit_codes import BAD_CONFIGURATION
from areal_like.process.identity import EPISODES, REWARD, SERVER

RESTARTED_ALONE = (SERVER, REWARD, EPISODES)


class RestartDecision(NamedTuple):
    """`kind`: "replace" (restart that process alone), "recover" (roll back the run), "fail", or "refuse" (the
    configuration is wrong)."""

    kind: str
    why: str = ""


class RestartPolicy:
    """`mode` and `retries` are recover.mode and recover.retries."""

    def __init__(self, mode: str, retries: int) -> None:
        self.mode, self.retries = mode, retries
        self._replaced: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._recovered = 0
        self._damaged: set[str] = set()

    def step(self) -> None:
        """A training step was completed, so restarted processes work."""
        self._replaced.clear()

    def checkpoint(self) -> None:
        """A new complete checkpoint exists, so the rollbacks before it no longer count."""
        self._recovered = 0

    def decide(self, name: str, code: int, ready: bool, first: bool, kind: str = "") -> RestartDecision:
        """`ready`: whether the process ever worked; `first`: whether this was its first start. A process that fails
        before it ever worked would fail again; one that was killed, or whose engine was, would not. Code 0: it exited
        unasked. `kind`: of its failure note. A version of the weights is found damaged only once: a second time, its
        server is no more the reason than any other."""
        if code == BAD_CONFIGURATION:
            return RestartDecision("refuse")
        if kind.startswith(DAMAGED):
            if kind in self._damaged:
                return RestartDecision("fail", "a server was already replaced because of damage to this version")
            self._damaged.add(kind)
        elif code >= 0 and first and not ready and kind != ProgramKilled.kind:
            again = "exit again" if code == 0 else "fail again"
            why = f"a restart would {again}, so it is not restarted"
            return RestartDecision("fail", why if code else f"{why}; {_cause(name)}")
        if name.partition("/")[0] in RESTARTED_ALONE:
            return self._restart(name) if code else self._replace_again(name)
        return self._recover()

    def _restart(self, name: str) -> RestartDecision:
        count = self._replaced[name] = self._replaced.get(name, 0) + 1
        if count <= self.retries:
            return RestartDecision("replace")
        times = f"{count} times" if count > 1 else "once"
        return RestartDecision(
            "fail", f"it died {times} without a training step in between (recover.retries={self.retries})"
        )

    def _replace_again(self, name: str) -> RestartDecision:
        """Exits with code 0 are counted over the whole run: steps of other processes do not reset the count."""
        count = self._left[name] = self._left.get(name, 0) + 1
        if count <= self.retries:
            return RestartDecision("replace")
        times = f"{count} times" if count > 1 else "once"
        why = f"it exited {times} during the run (recover.retries={self.retries}); {_cause(name)}"
        return RestartDecision("fail", why)

    def _recover(self) -> RestartDecision:
        if self.mode == "disabled":
            return RestartDecision(
                "fail",
                "recover.mode=disabled saves nothing to resume from; with recover.mode=auto the run restarts by itself",
            )
        self._recovered += 1
        if self._recovered <= self.retries:
            return RestartDecision("recover")
        if self.retries == 0:
            return RestartDecision("fail", "recover.retries=0")
        since = f"{self.retries} recoveries without a new complete checkpoint"
        return RestartDecision("fail", f"{since} (recover.retries={self.retries})")


def _cause(name: str) -> str:
    return "code that it runs may call os._exit(0)" if name.startswith(EPISODES) else "nothing had stopped it"
