"""Kills processes that make no progress, after a report of what all processes do; the run goes on as after a death."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from areal_like.process.exit_codes import FAILED
from areal_like.process.identity import CONTROLLER, EPISODES, REWARD, SERVER, TRAINER
from areal_like.process.patience import MARGIN_S
from areal_like.process.pulse import COLLECTIVE, IDLE, LOADING, PHASES, PUBLISHING, SAVING, SERVING, UPDATING
from areal_like.process.run import Run
from areal_like.weights.transfer_path import COLLECTIVE_MODES
from launcher.agent.base import NodeAgent, ProcessSample
from launcher.supervisor.hang_log import HangLog
from launcher.supervisor.hang_watch import Hang, HangWatch
from launcher.supervisor.launcher_pulse import LAUNCHER_PULSE
from launcher.supervisor.lifecycle import RunEnding
from launcher.supervisor.roster import RunningProcess

CHECK_S = 1.0
WRITE_TIMEOUTS = 10
"""A checkpoint may take so many times `dist_timeout_s`, as its trainers wait for it."""
DIES_S = 10.0
"""What a process may take to die once it is killed."""
HOLDS = "the run ends, as what is to replace it may need the GPU memory or the port that it holds"
FOLDER = "hang-{}"


class Watchdog:
    """`poll` is to be called repeatedly. Whoever it kills is among the next exits of the agent."""

    def __init__(self, run: Run, agent: NodeAgent, say: Callable[[str], None]) -> None:
        self.ending: RunEnding | None = None
        """Where the run cannot go on, as a killed process does not die."""
        self._agent, self._logs, self._say = agent, run.logs, say
        self._watch = hang_watch(run.config)
        self._log = HangLog(run.logs, run.config.log.max_mb << 20)
        self._grace_s = run.config.recover.grace_s
        LAUNCHER_PULSE.begin()
        self._looked_at = time.monotonic()
        self._hung: Sequence[Hang] = ()
        """They are killed when the report is written."""
        self._killed: dict[str, float] = {}
        """Starts that are not dead, and when each was killed."""
        self._undying: set[str] = set()
        """Of these those that were reported."""

    def close(self) -> None:
        """The launcher has no more processes to watch."""
        LAUNCHER_PULSE.end()
        self._log.close()

    def poll(self) -> None:
        LAUNCHER_PULSE.beat()
        gap_s = time.monotonic() - self._looked_at
        if gap_s < CHECK_S:
            return
        self._looked_at += gap_s
        if self._hung:  # nobody else's silence counts while its report is written
            if self._agent.hang_report_is_done():
                self._kill_hung()
            return
        samples = self._agent.samples()
        self._check_killed(samples)
        look = self._watch.look([each for each in samples if each.start not in self._killed], gap_s)
        for notice in look.notices:
            self._tell(notice)
        if look.hangs:
            folder = self._next_folder()
            place = folder.relative_to(self._logs.parent)
            self._hung = [hang._replace(message=f"{hang.message}; stacks: {place}") for hang in look.hangs]
            self._agent.begin_hang_report(str(folder), [hang.message for hang in look.hangs])

    def kill_silent(self, names: Sequence[str], late: str = "") -> None:
        """Of these the ones that are stopped, without waiting for their limits, or past these: a rollback needs
        them. `late`: why those that are silent only for the time of a notice have had enough, too."""
        for name, (start, message) in self._watch.silent(self._agent.samples(), names if late else ()).items():
            if name in names:
                self._kill(name, start, "; ".join(filter(None, [message, late])))

    def kill_late(self, late: Sequence[RunningProcess], why: str) -> list[RunningProcess]:
        """Of those that are not ready in time, kills the ones that make no progress: their successors may be. Returns
        the others."""
        if left := [each for each in late if each.identity.start_name not in self._killed]:
            self._agent.dump_stacks()
            self.kill_silent([each.identity.name for each in left], why)
        return [each for each in left if each.identity.start_name not in self._killed]

    def still_alive(self, names: Sequence[str]) -> bool:
        """Of these, which others have killed, some may not die: nothing may take their place then."""
        left = [each for each in self._agent.samples() if each.name in names]
        for each in left:
            self._killed.setdefault(each.start, time.monotonic())
        return bool(left)

    def _kill_hung(self) -> None:
        """Those that hang still: meanwhile a rollback may have replaced them, or a debugger continued them."""
        hung, self._hung = self._hung, ()
        samples = self._agent.samples()
        still, alive = self._watch.confirmed(hung, samples), {each.start for each in samples}
        for hang in hung:
            if hang in still:
                self._kill(hang.name, hang.start, hang.message)
            elif hang.start in alive:
                self._tell(f"{hang.name} makes progress again")

    def _tell(self, text: str) -> None:
        self._log.add(text)
        self._say(text)

    def _kill(self, name: str, start: str, message: str) -> None:
        if start in self._killed:
            return
        self._log.add(f"{name} is killed: {message}")
        self._agent.kill_hung(name, start, message)
        self._killed[start] = time.monotonic()

    def _check_killed(self, samples: Sequence[ProcessSample]) -> None:
        """One in a call to the kernel that does not return dies at its end, which may never come. It writes nothing
        after that call, but what it holds is not free."""
        alive, now = {each.start: each for each in samples}, time.monotonic()
        self._killed = {start: at for start, at in self._killed.items() if start in alive}
        for start, at in self._killed.items():
            place = f"it hangs in the kernel (state {alive[start].state}), such as on a dead disk"
            stuck = f"{alive[start].name} was killed but cannot be ended: {place}"
            if start not in self._undying and now > at + DIES_S:
                self._undying.add(start)
                self._tell(f"{stuck}; the run waits at most {self._grace_s:g} s more for its end (recover.grace_s)")
            if self.ending is None and now > at + DIES_S + self._grace_s:
                text = f"recover.grace_s: {stuck}; {HOLDS}"
                self._log.add(text)
                self.ending = RunEnding("failed", FAILED, text)

    def _next_folder(self) -> Path:
        number = 1
        while (folder := self._logs / FOLDER.format(number)).exists():
            number += 1
        return folder


def hang_watch(config: Any) -> HangWatch:
    """With the limits of a run's configuration."""
    section = config.watchdog
    limits = {phase: getattr(section, f"{phase}_s") for phase in PHASES if phase != IDLE}
    floors = {}
    if (workflow := getattr(config, "workflow", None)) is not None:
        block_s = workflow.block_timeout_s
        floors[EPISODES, SERVING] = math.inf if block_s is None else block_s + MARGIN_S
    trained = getattr(config, "actor", None) or config.model
    floors[TRAINER, COLLECTIVE] = trained.dist_timeout_s + MARGIN_S
    floors[TRAINER, SAVING] = WRITE_TIMEOUTS * trained.dist_timeout_s + MARGIN_S
    if (rollout := getattr(config, "rollout", None)) is not None:
        for role in (SERVER, REWARD, CONTROLLER, EPISODES, TRAINER):
            floors[role, LOADING] = rollout.setup_timeout + MARGIN_S
        floors[SERVER, UPDATING] = rollout.setup_timeout + MARGIN_S
        if trained.weight_update_mode in COLLECTIVE_MODES:
            floors[TRAINER, PUBLISHING] = config.weights.broadcast.timeout_s + MARGIN_S
            floors[SERVER, UPDATING] = max(floors[SERVER, UPDATING], floors[TRAINER, PUBLISHING])
    give_up_s = max(trained.dist_timeout_s - MARGIN_S, trained.dist_timeout_s / 2)
    return HangWatch(section.notice_s, limits, floors, give_up_s)
