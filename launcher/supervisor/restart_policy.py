"""What follows from the death of a process. Pure: it counts, and decides.

server, reward, episodes   replaced by themselves; their work runs again
controller, trainer        the whole run goes back to the newest complete checkpoint
"""

from typing import NamedTuple

from areal_like.process.exit_codes import BAD_CONFIGURATION
from areal_like.process.identity import EPISODES, REWARD, SERVER

RESTARTED_ALONE = (SERVER, REWARD, EPISODES)


class RestartDecision(NamedTuple):
    """`kind`: "replace" that process, "recover" the whole run, "fail", or "refuse" (the configuration is bad)."""

    kind: str
    why: str = ""


class RestartPolicy:
    """`mode` and `retries` are recover.mode and recover.retries."""

    def __init__(self, mode: str, retries: int) -> None:
        self.mode, self.retries = mode, retries
        self._replaced: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._recovered = 0

    def step(self) -> None:
        """A training step was completed: what was replaced does its work."""
        self._replaced.clear()

    def checkpoint(self) -> None:
        """There is a new complete checkpoint: what went wrong before it is behind us."""
        self._recovered = 0

    def judge(self, name: str, code: int, ready: bool, first: bool) -> RestartDecision:
        """`ready`: whether it ever worked; `first`: whether it was its first start. What ends by its own fault before
        it has done anything would do so again; what was killed would not. With code 0 it left, and nobody had asked."""
        if code == BAD_CONFIGURATION:
            return RestartDecision("refuse")
        if code >= 0 and first and not ready:
            again = "leave again" if code == 0 else "fail again"
            why = f"nothing had worked yet, so it would {again}: it is not started again"
            return RestartDecision("fail", why if code else f"{why}; {_cause(name)}")
        if name.partition("/")[0] in RESTARTED_ALONE:
            return self._replace(name) if code else self._replace_again(name)
        return self._recover()

    def _replace(self, name: str) -> RestartDecision:
        count = self._replaced[name] = self._replaced.get(name, 0) + 1
        if count <= self.retries:
            return RestartDecision("replace")
        times = f"{count} times" if count > 1 else "once"
        return RestartDecision(
            "fail", f"it died {times} without a training step in between (recover.retries={self.retries})"
        )

    def _replace_again(self, name: str) -> RestartDecision:
        """Who leaves as if all were done has a cause that steps of others do not take away."""
        count = self._left[name] = self._left.get(name, 0) + 1
        if count <= self.retries:
            return RestartDecision("replace")
        times = f"{count} times" if count > 1 else "once"
        why = f"it left {times} in the middle of the run (recover.retries={self.retries}); {_cause(name)}"
        return RestartDecision("fail", why)

    def _recover(self) -> RestartDecision:
        if self.mode == "disabled":
            return RestartDecision(
                "fail",
                "recover.mode=disabled saves nothing to resume from; with recover.mode=auto the run goes on by itself",
            )
        self._recovered += 1
        if self._recovered <= self.retries:
            return RestartDecision("recover")
        if self.retries == 0:
            return RestartDecision("fail", "recover.retries=0")
        since = f"{self.retries} recoveries without a new complete checkpoint"
        return RestartDecision("fail", f"{since} (recover.retries={self.retries})")


def _cause(name: str) -> str:
    return "code that it runs may call os._exit(0)" if name.startswith(EPISODES) else "nobody had asked it to"
