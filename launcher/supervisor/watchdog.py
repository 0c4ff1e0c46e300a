"""Kills processes that make no progress, after a report of what all processes do; the run goes on as after a death."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from areal_like.process.identity import EPISODES, TRAINER
from areal_like.process.pulse import COLLECTIVE, IDLE, PHASES, SERVING
from areal_like.process.run import Run
from launcher.agent.base import NodeAgent
from launcher.supervisor.hang_watch import Hang, HangWatch
from launcher.supervisor.launcher_pulse import LAUNCHER_PULSE

CHECK_S = 1.0
MARGIN_S = 60.0
"""Other limits have so long to act first: their messages say more."""
FOLDER = "hang-{}"


class Watchdog:
    """`poll` is to be called repeatedly. Whoever it kills is among the next exits of the agent."""

    def __init__(self, run: Run, agent: NodeAgent, say: Callable[[str], None]) -> None:
        self._agent, self._logs, self._say = agent, run.logs, say
        self._watch = hang_watch(run.config)
        LAUNCHER_PULSE.begin(run.config.watchdog.notice_s, run.config.watchdog.launcher_s)
        self._looked_at = time.monotonic()
        self._hung: Sequence[Hang] = ()
        """They are killed when the report is written."""

    def close(self) -> None:
        """The launcher has no more processes to watch."""
        LAUNCHER_PULSE.end()

    def poll(self) -> None:
        LAUNCHER_PULSE.beat()
        if self._hung and self._agent.hang_report_is_done():
            for hang in self._hung:
                self._agent.kill_hung(hang.name, hang.message)
            self._hung = ()
        gap_s = time.monotonic() - self._looked_at
        if gap_s < CHECK_S:
            return
        self._looked_at += gap_s
        look = self._watch.look(self._agent.samples(), gap_s)
        for notice in look.notices:
            self._say(notice)
        if look.hangs and not self._hung:
            folder = self._next_folder()
            place = folder.relative_to(self._logs.parent)
            self._hung = [hang._replace(message=f"{hang.message}; stacks: {place}") for hang in look.hangs]
            self._agent.begin_hang_report(str(folder))

    def kill_silent(self, names: Sequence[str]) -> None:
        """Of these the ones that make no progress, without waiting for their limits: a rollback needs them."""
        for name, message in self._watch.silent(self._agent.samples()).items():
            if name in names:
                self._agent.kill_hung(name, message)

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
        floors[EPISODES, SERVING] = (workflow.block_timeout_s or 0.0) + MARGIN_S
    trained = getattr(config, "actor", None) or config.model
    floors[TRAINER, COLLECTIVE] = trained.dist_timeout_s + MARGIN_S
    return HangWatch(section.notice_s, limits, floors)
