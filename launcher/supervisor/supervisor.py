"""Watches the processes of a run from their start to its end, and sees to what dies."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from areal_like.discovery import NameMissing, NameStore, parse_entry
from areal_like.process.checkpoint_files import resume_problem, step_of
from areal_like.process.exit_codes import BAD_CONFIGURATION, DONE, FAILED, INTERRUPTED, STOPPED_EARLY
from areal_like.process.identity import CONTROLLER, EPISODES, REWARD, SERVER, TRAINER, Identity
from areal_like.process.process_tree import has_handler, reap_orphans
from areal_like.process.run import Run, StartPoint
from launcher.agent.local import LocalAgent
from launcher.agent.managed_process import ManagedProcess, ProcessExit
from launcher.runs.checkpoints import complete_steps, step_folder
from launcher.runs.resumable import resume_point_text, stop_message
from launcher.supervisor.failure_report import failure_text, headline, not_ready_text
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.supervisor.rollback import roll_back
from launcher.supervisor.signal_wait import SignalWait
from launcher.supervisor.stall_detector import StallDetector
from launcher.supervisor.startup_progress import StartupProgress

POLL_S, CHECK_S, REPORT_S = 0.2, 1.0, 5.0
STACKS_S = 0.5
EVALUATION_GRACE_S = 10.0
IDLE_WORKER_S = 10.0
"""An episodes worker ends when it is told that the run is over; the others follow soon, or it was no such end."""
SERVING_ROLES = (SERVER, REWARD)
ADDRESSED_ROLES = (*SERVING_ROLES, CONTROLLER)
"""Roles that enter an address under their name once they can answer."""
LAUNCHER = "launcher/0"
"""The name under which a launcher holds its run."""
FINAL = "final"
"""What a process notes down of a failure that another attempt would meet again, as a full disk is."""
PORT_IN_USE = ("address already in use", "eaddrinuse")


def _nothing() -> None:
    pass


class RunEnding(NamedTuple):
    """How a run ended: `outcome` is done, failed, refused, stopped, interrupted, or lost, when its name and directory
    are another launcher's."""

    outcome: str
    code: int
    message: str = ""
    says_all: bool = False
    """Whether the message is the process's own reason, and its log has nothing more."""


class WaitLimits(NamedTuple):
    """Each wait, and the key that says how long."""

    setup_s: float
    setup_key: str
    stop_s: float
    stop_key: str


class Supervisor:
    """`cut(step, attempt)` takes the metrics back; `say` is told what a user should know."""

    def __init__(
        self,
        run: Run,
        crew: LocalAgent,
        names: NameStore,
        limits: WaitLimits,
        policy: RestartPolicy,
        start: StartPoint,
        say: Callable[[str], None],
        cut: Callable[[int, int], None],
    ) -> None:
        self.run, self.crew, self.names, self.limits, self.policy = run, crew, names, limits, policy
        self.attempt = start.attempt
        self._first_attempt, self._checkpoint = start.attempt, start.step
        self._say, self._cut = say, cut
        self._vital = crew.names(CONTROLLER, TRAINER)
        self._ended: dict[str, int] = {}
        self._idle: dict[str, tuple[float, ProcessExit]] = {}
        self._stopping: tuple[str, float] | None = None
        self._steps_bytes = self._steps_file_bytes()
        self._works = False
        self._stillness = StallDetector()
        self._awaited = StartupProgress(f"{limits.setup_s:g} s, {limits.setup_key}")
        self._looked = self._said = self._last_end = 0.0

    def watch(self, started: Callable[[], None] = _nothing, turn: Callable[[], None] = _nothing) -> RunEnding:
        """Starts everything, then calls `started`, and `turn` all the while; returns when nothing of it is left."""
        try:
            with SignalWait() as wake:
                for name in self.crew.processes:
                    self.crew.start(name, self.attempt)
                started()
                while (ending := self._turn(wake)) is None:
                    turn()
                    wake.wait(POLL_S)
                if ending.outcome not in ("failed", "lost"):
                    self.crew.end(list(self.crew.alive))
                return ending
        finally:
            self.crew.kill(list(self.crew.alive))
            self.crew.close()

    def _turn(self, wake: SignalWait) -> RunEnding | None:
        for number in wake.take():
            if (ending := self._signalled(number)) is not None:
                return ending
        if LAUNCHER in self.names.lost:
            return self._lost(self.names.lost[LAUNCHER])
        deaths, early = self.crew.deaths(), self._ended_early()
        self._look(now_at_once=bool(deaths or early))
        ending = self._died(deaths) if deaths else None
        if ending is None and early:
            ending = self._failed(early)
        return ending or self._over() or self._unready() or self._stop_overdue()

    def _lost(self, why: str) -> RunEnding:
        message = (
            f"{self.names.full(LAUNCHER)}: this launcher has lost the name of its run ({why}), so another may be using "
            f"{self.run.directory}; the processes of this one were ended, and nothing more was written. Go on with "
            "resume= when no other launcher has it"
        )
        return RunEnding("lost", FAILED, message)

    # --- deaths

    def _died(self, deaths: Sequence[ProcessExit]) -> RunEnding | None:
        for death in deaths:
            if death.code in (DONE, STOPPED_EARLY) and death.name in self._vital:
                self._ended[death.name] = death.code
                self._last_end = time.monotonic()
            elif death.code == DONE and death.child.identity.role == EPISODES:
                self._idle[death.name] = (time.monotonic(), death)
        failed = [death for death in deaths if death.name not in self._ended and death.name not in self._idle]
        return self._failed(failed) if failed else None

    def _ended_early(self) -> list[ProcessExit]:
        """Workers that ended, though nobody followed."""
        now = time.monotonic()
        early = [death for since, death in self._idle.values() if now - since > IDLE_WORKER_S]
        for death in early:
            del self._idle[death.name]
        return early

    def _failed(self, failed: Sequence[ProcessExit]) -> RunEnding | None:
        if self._stopping is not None:
            lost = [death for death in failed if death.name in self._vital]
            return self._stopped(f"while it was stopping: {headline(lost[0])}") if lost else None
        if any(death.note is not None and death.note.kind == "timeout" for death in failed):
            self._dump_stacks()
        went_back = False
        for death in failed:
            if went_back and death.name not in self.crew.names(*SERVING_ROLES):
                continue
            if self._met_a_taken_port(death):
                self.crew.new_master_port()
                self._go_back(death, "its port was taken meanwhile")
                went_back = True
                continue
            first = death.child.identity.attempt == self._first_attempt and death.child.identity.incarnation == 1
            judgement = self.policy.judge(death.name, death.code, self._was_ready(death.child), first)
            if judgement.kind == "refuse":
                if death.note is None:
                    return RunEnding("refused", BAD_CONFIGURATION, failure_text(death, [], self.run.directory))
                return RunEnding("refused", BAD_CONFIGURATION, death.note.message, says_all=True)
            if judgement.kind == "fail" or (death.note is not None and death.note.kind == FINAL):
                others = [other for other in failed if other is not death]
                return RunEnding("failed", FAILED, failure_text(death, others, self.run.directory, judgement.why))
            if judgement.kind == "recover":
                self._go_back(death)
                went_back = True
            else:
                self._replace(death)
        return None

    def _replace(self, death: ProcessExit) -> None:
        with suppress(NameMissing):
            self.names.delete(death.name)
        child = self.crew.start(death.name, self.attempt)
        self._say(f"{headline(death)}; it is replaced (incarnation {child.identity.incarnation})")

    def _go_back(self, death: ProcessExit, why: str = "") -> None:
        """The one recovery: trainer, controller and episodes workers begin again from the newest checkpoint; servers
        stay, and are given its weights."""
        again = self.crew.names(CONTROLLER, EPISODES, TRAINER)
        self.crew.kill(again)
        for name in again:
            with suppress(NameMissing):
                self.names.delete(name)
        self._ended.clear()
        self._idle.clear()
        self._stillness.restarted()
        ended, self.attempt = self.attempt, self.attempt + 1
        back = roll_back(self.run, self.attempt, self._first_attempt)
        self._cut(back.step, ended)
        self._steps_bytes = self._steps_file_bytes()
        place = "the start: there is no checkpoint yet"
        if back.checkpoint is not None:
            place = f"the checkpoint of step {step_of(back.checkpoint.name)}"
        self._say(f"{why or headline(death)}; attempt {self.attempt} goes on from {place}")
        for remark in back.remarks:
            self._say(f"  {remark}")
        for name in again:
            self.crew.start(name, self.attempt)

    def _was_ready(self, child: ManagedProcess) -> bool:
        """A server is by itself; the others work together, and do when a step was made."""
        return child.ready_after is not None if child.identity.role in SERVING_ROLES else self._works

    def _met_a_taken_port(self, death: ProcessExit) -> bool:
        if death.child.identity.role != TRAINER or self._works or death.code <= 0:
            return False
        text = " ".join([death.note.message if death.note else "", *death.last_lines]).lower()
        return any(word in text for word in PORT_IN_USE) and death.child.identity.attempt < self._first_attempt + 3

    # --- the end

    def _over(self) -> RunEnding | None:
        if any(name not in self._ended for name in self._vital):
            return self._stopped() if self._only_evaluates_for_too_long() else None
        if self._stopping is not None or STOPPED_EARLY in self._ended.values():
            return self._stopped()
        return RunEnding("done", DONE)

    def _only_evaluates_for_too_long(self) -> bool:
        """Who asks for an end does not mean the last evaluation; everything else is written by then."""
        if self._stopping is None or any(name not in self._ended for name in self.crew.names(TRAINER)):
            return False
        return time.monotonic() - max(self._stopping[1], self._last_end) > EVALUATION_GRACE_S

    def _stopped(self, trouble: str = "") -> RunEnding:
        message = "\n".join(filter(None, [trouble, resume_point_text(self.run)]))
        if self._stopping is not None and self._stopping[0] == "interrupted":
            return RunEnding("interrupted", INTERRUPTED, message)
        return RunEnding("stopped", STOPPED_EARLY, message)

    def _signalled(self, number: int) -> RunEnding | None:
        if number == signal.SIGINT and self._stopping is not None:
            self._stopping = ("interrupted", 0.0)
            self.crew.kill(list(self.crew.alive))
            return self._stopped()
        if self._stopping is not None:
            return None
        self._said = time.monotonic()
        self._stopping = ("interrupted" if number == signal.SIGINT else "stopped", self._said)
        self._look(now_at_once=True)
        if not self._works:  # no step was made since the start, so there is nothing to save
            self.crew.kill(list(self.crew.alive))
            return self._stopped()
        controller = self.crew.names(CONTROLLER)
        self.crew.send(controller or self.crew.names(TRAINER), signal.SIGTERM)
        self._say(stop_message(self.run.config))
        return None

    def _stop_overdue(self) -> RunEnding | None:
        if self._stopping is None:
            return None
        since = time.monotonic() - self._stopping[1]
        missing = ", ".join(name for name in self._vital if name not in self._ended)
        if since > self.limits.stop_s:
            self._dump_stacks()
            words = f"{self.limits.stop_key}: {missing} did not end within {self.limits.stop_s:g} s"
            return RunEnding("failed", FAILED, f"{words}; stacks at that moment: logs/*.stacks")
        if self._time_for_a_word():
            self._say(f"stopping: waiting for {missing} since {since:.0f} s")
        return None

    # --- what is waited for

    def _unready(self) -> RunEnding | None:
        addressed = [child for child in self.crew.alive.values() if child.identity.role in ADDRESSED_ROLES]
        missing = [child for child in addressed if child.ready_after is None]
        if not missing or self._stopping is not None:
            return None
        entries = {name: value for role in ADDRESSED_ROLES for name, value in self.names.find(role).items()}
        for child in missing:
            entry = parse_entry(entries[child.identity.name]) if child.identity.name in entries else None
            if entry and (entry.attempt, entry.incarnation) == (child.identity.attempt, child.identity.incarnation):
                child.ready_after = child.age_s
                self._say(f"  {child.identity.name} ready {child.age_s:.1f} s")
        missing = [child for child in missing if child.ready_after is None]
        late = [child for child in missing if child.age_s > self.limits.setup_s]
        if late:
            self._dump_stacks()
            message = not_ready_text(late, self.limits.setup_s, self.limits.setup_key, self.run.directory)
            return RunEnding("failed", FAILED, message)
        for line in self._awaited.words(missing):
            self._say(line)
        return None

    def _time_for_a_word(self) -> bool:
        now = time.monotonic()
        if now - self._said < REPORT_S:
            return False
        self._said = now
        return True

    def _look(self, now_at_once: bool) -> None:
        """What the run has come to since the last look."""
        now = time.monotonic()
        if now - self._looked < CHECK_S and not now_at_once:
            return
        self._looked = now
        size = self._steps_file_bytes()
        if size != self._steps_bytes:
            self._steps_bytes, self._works = size, True
            self._stillness.stepped()
            self.policy.step()
        newest = max(complete_steps(self.run.directory), default=0)
        if newest > self._checkpoint and resume_problem(step_folder(self.run.directory, newest)) is None:
            self._checkpoint = newest
            self.policy.checkpoint()
        self._say_if_still()
        reap_orphans(self.crew.pids())

    def _say_if_still(self) -> None:
        """Whoever is not ready is waited for aloud, and at the end there are no steps."""
        if any(
            child.identity.role in ADDRESSED_ROLES and child.ready_after is None for child in self.crew.alive.values()
        ):
            self._stillness.restarted()
        elif self._stopping is None and not self._ended:
            for line in self._stillness.words(self.crew.alive.values()):
                self._say(line)

    def _steps_file_bytes(self) -> int:
        """The trainer adds a line for each step."""
        path = self.run.metrics / f"{Identity(TRAINER, 0).file_name}.jsonl"
        return path.stat().st_size if path.is_file() else 0

    def _dump_stacks(self) -> None:
        """Every process that can writes where it stands into logs/<role>-<index>.stacks."""
        for child in self.crew.alive.values():
            if has_handler(child.pid, signal.SIGUSR1):
                child.send(signal.SIGUSR1)
        time.sleep(STACKS_S)
