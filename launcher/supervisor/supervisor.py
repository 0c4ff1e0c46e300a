"""Supervises the processes of a run: starts them, handles those that end, stops them."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from areal_like.discovery import NameMissing, NameStore, parse_entry
from areal_like.process.checkpoint_files import resume_problem
from areal_like.process.exit_codes import BAD_CONFIGURATION, DONE, FAILED, INTERRUPTED, STOPPED_EARLY
from areal_like.process.identity import CONTROLLER, EPISODES, REWARD, SERVER, TRAINER, Identity
from areal_like.process.run import Run, StartPoint
from areal_like.rollout.evaluation.answer_folders import answer_bytes
from launcher.agent.base import ProcessExit
from launcher.runs.checkpoints import complete_steps, step_folder
from launcher.runs.resumable import EVALUATION_STOPS, evaluation_point_text, resume_point_text, stop_message
from launcher.supervisor.checkpoint_search import CheckpointSearch
from launcher.supervisor.failure_report import failure_text, headline, not_ready_text, port_was_taken
from launcher.supervisor.lifecycle import Lifecycle, RunEnding, WaitLimits
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.supervisor.rollback import PendingRollback, roll_back
from launcher.supervisor.roster import Roster, RunningProcess
from launcher.supervisor.signal_wait import SignalWait
from launcher.supervisor.stall_detector import StallDetector
from launcher.supervisor.startup_progress import StartupProgress
from launcher.supervisor.taken_over import lost_name_ending, taken_over_ending
from launcher.supervisor.watchdog import Watchdog

POLL_S, CHECK_S, REPORT_S, EVALUATION_GRACE_S = 0.2, 1.0, 5.0, 10.0
IDLE_WORKER_S = 10.0
"""After an episodes worker exits with 0, the run must end within this time; otherwise the worker failed."""
SERVING_ROLES = (SERVER, REWARD)
ADDRESSED_ROLES = (*SERVING_ROLES, CONTROLLER)
"""Roles that publish an address once they are ready."""
FINAL = "final"
"""Kind of failure that would repeat in every attempt, such as a full disk."""


class Supervisor:
    """`say` prints a message for the user."""

    def __init__(
        self,
        run: Run,
        roster: Roster,
        names: NameStore,
        limits: WaitLimits,
        policy: RestartPolicy,
        start: StartPoint,
        say: Callable[[str], None],
        lifecycle: Lifecycle,
    ) -> None:
        self.run, self.roster, self.names, self.limits, self.policy = run, roster, names, limits, policy
        self.attempt = start.attempt
        self._first_attempt, self._checkpoint = start.attempt, start.step
        self._say, self._lifecycle = say, lifecycle
        self._vital = roster.names(*lifecycle.vital)
        self._evaluates = lifecycle.trains and not roster.names(TRAINER)
        self._ended: dict[str, int] = {}
        self._ended_workers: dict[str, tuple[float, ProcessExit]] = {}
        self._stopping: tuple[str, float] | None = None
        self._steps_bytes = self._steps_file_bytes()
        self._has_stepped = self._attempt_has_stepped = False
        self._addresses: Sequence[str] = ()
        self._pending: PendingRollback | None = None
        self._stall_detector = StallDetector(noun="answer" if self._evaluates else "step")
        self._watchdog = Watchdog(run, roster.agent, say)
        self._startup_progress = StartupProgress(f"{limits.setup_s:g} s, {limits.setup_key}")
        self._checked_at = self._reported_at = self._last_end = 0.0

    def watch(self) -> RunEnding:
        """Starts all processes; returns when every process has ended."""
        with SignalWait() as signals:
            try:
                for name in self.roster.processes:
                    self.roster.start(name, self.attempt)
                self._lifecycle.on_start()
                while (ending := self._poll(signals)) is None:
                    self._lifecycle.on_poll()
                    signals.wait(POLL_S)
                ending = taken_over_ending(self.run, self.attempt) or ending
                if ending.outcome not in ("failed", "lost", "refused"):
                    self.roster.end()
                return ending
            finally:
                signals.release_interrupt()  # a request to stop comes too late, but the user need not wait
                if self._pending is not None:
                    self._pending.search.cancel()
                self.roster.kill()
                self.roster.agent.close()
                self._watchdog.close()

    def _poll(self, signals: SignalWait) -> RunEnding | None:
        for number in signals.received():
            if (ending := self._handle_signal(number)) is not None:
                return ending
        if (lost := lost_name_ending(self.run, self.names)) is not None:
            return lost
        self._watchdog.poll()
        exits, early = self.roster.exits(), self._early_workers()
        if (exits or early) and (lost := taken_over_ending(self.run, self.attempt)) is not None:
            return lost
        self._check_progress(at_once=bool(exits or early))
        ending = self._handle_exits(exits) if exits else self._watchdog.ending
        if ending is None and early:
            ending = self._handle_failures(early)
        ending = ending or self._check_rollback() or self._finished()
        return ending or self._check_readiness() or self._check_stop_timeout()

    # --- processes that ended

    def _handle_exits(self, exits: Sequence[ProcessExit]) -> RunEnding | None:
        for exited in exits:
            if exited.code in (DONE, STOPPED_EARLY) and exited.name in self._vital:
                self._ended[exited.name] = exited.code
                self._last_end = time.monotonic()
            elif exited.code == DONE and exited.identity.role == EPISODES:
                self._ended_workers[exited.name] = (time.monotonic(), exited)
        failed = [
            exited for exited in exits if exited.name not in self._ended and exited.name not in self._ended_workers
        ]
        return self._handle_failures(failed) if failed else None

    def _early_workers(self) -> list[ProcessExit]:
        """Workers that exited with 0 although the run went on."""
        early = [exited for since, exited in self._ended_workers.values() if time.monotonic() - since > IDLE_WORKER_S]
        for exited in early:
            del self._ended_workers[exited.name]
        return early

    def _handle_failures(self, failed: Sequence[ProcessExit]) -> RunEnding | None:
        if self._stopping is not None:
            lost = [exited for exited in failed if exited.name in self._vital]
            return self._stopped(f"while it was stopping: {headline(lost[0])}") if lost else None
        if any(exited.note is not None and exited.note.kind == "timeout" for exited in failed):
            self.roster.agent.dump_stacks()
        rolled_back = False
        for exited in failed:
            if rolled_back and exited.name not in self.roster.names(*SERVING_ROLES):
                continue
            if self._is_port_conflict(exited):
                self.roster.agent.new_master_port()
                self._roll_back(exited, "the port of the trainer was taken by another process")
                rolled_back = True
                continue
            first = exited.identity.attempt == self._first_attempt and exited.identity.incarnation == 1
            kind = exited.note.kind if exited.note is not None else ""
            decision = self.policy.decide(exited.name, exited.code, self._was_ready(exited.identity), first, kind)
            if decision.kind == "refuse":
                if exited.note is None:
                    return RunEnding("refused", BAD_CONFIGURATION, failure_text(exited, [], self.run.directory))
                return RunEnding("refused", BAD_CONFIGURATION, exited.note.message, is_complete=True)
            if decision.kind == "fail" or kind == FINAL:
                others = [other for other in failed if other is not exited]
                return RunEnding("failed", FAILED, failure_text(exited, others, self.run.directory, decision.why))
            if decision.kind == "recover":
                self._roll_back(exited)
                rolled_back = True
            else:
                self._restart(exited)
        return None

    def _restart(self, exited: ProcessExit) -> None:
        with suppress(NameMissing):
            self.names.delete(exited.name)
        started = self.roster.start(exited.name, self.attempt)
        self._say(f"{headline(exited)}; it is replaced (incarnation {started.identity.incarnation})")

    def _roll_back(self, exited: ProcessExit, why: str = "") -> None:
        """Restarts trainer, controller and episodes workers from the newest checkpoint; servers stay and receive its
        weights, unless they make no progress."""
        again = self.roster.names(CONTROLLER, EPISODES, TRAINER)
        self._watchdog.kill_silent(self.roster.names(*SERVING_ROLES))
        self.roster.kill(again)
        for name in again:
            with suppress(NameMissing):
                self.names.delete(name)
        self._ended.clear()
        self._ended_workers.clear()
        self._stall_detector.restarted()
        self.attempt += 1
        self._pending = PendingRollback(CheckpointSearch(self.run), why or headline(exited))
        self._reported_at = time.monotonic()

    def _check_rollback(self) -> RunEnding | None:
        """Starts the next attempt once its checkpoint is found. Until then only servers run."""
        pending = self._pending
        if pending is None:
            return None
        is_done = pending.search.is_done()  # first: the ending is that of a search which is done
        if (ending := pending.ending(self.run, self.attempt, self.limits, self.policy.mode)) is not None:
            return ending
        if not is_done:
            if self._report_is_due():
                self._say(f"  {pending.search.progress_text()}")
            return None
        again = self.roster.names(CONTROLLER, EPISODES, TRAINER)
        if self._watchdog.still_alive(again):
            return None
        self._pending = None
        back = roll_back(self.run, self.attempt, self._first_attempt, pending.search.result())
        self._lifecycle.rewind_metrics(back.step, self.attempt - 1)
        self._checkpoint, self._steps_bytes, self._attempt_has_stepped = back.step, self._steps_file_bytes(), False
        for line in pending.result_lines(back, self.attempt, self._evaluates):
            self._say(line)
        for name in again:
            self.roster.start(name, self.attempt)
        return None

    def _was_ready(self, identity: Identity) -> bool:
        """Servers become ready one by one; the other processes count as ready after the first step."""
        return identity in self.roster.ready if identity.role in SERVING_ROLES else self._has_stepped

    def _is_port_conflict(self, exited: ProcessExit) -> bool:
        may_try_again = exited.identity.role == TRAINER and exited.identity.attempt < self._first_attempt + 3
        return may_try_again and not self._has_stepped and exited.code > 0 and port_was_taken(exited)

    # --- the end

    def _finished(self) -> RunEnding | None:
        if not self._vital:
            return None
        if any(name not in self._ended for name in self._vital):
            return self._stopped() if self._evaluation_overdue() else None
        if self._stopping is not None or STOPPED_EARLY in self._ended.values():
            return self._stopped()
        return RunEnding("done", DONE)

    def _evaluation_overdue(self) -> bool:
        """Whether a stop waits for nothing but an evaluation, which is then cut short."""
        if self._stopping is None or any(name not in self._ended for name in self.roster.names(TRAINER)):
            return False
        return time.monotonic() - max(self._stopping[1], self._last_end) > EVALUATION_GRACE_S

    def _stopped(self, trouble: str = "") -> RunEnding:
        point = evaluation_point_text(self.run) if self._evaluates else resume_point_text(self.run)
        message = "\n".join(filter(None, [trouble, point]))
        if self._stopping is not None and self._stopping[0] == "interrupted":
            return RunEnding("interrupted", INTERRUPTED, message)
        return RunEnding("stopped", STOPPED_EARLY, message)

    def _handle_signal(self, number: int) -> RunEnding | None:
        if not self._lifecycle.trains:
            return RunEnding("interrupted", INTERRUPTED) if self._vital else RunEnding("done", DONE)
        if number == signal.SIGINT and self._stopping is not None:
            self._stopping = ("interrupted", 0.0)
            self.roster.kill()
            return self._stopped()
        if self._stopping is not None:
            return None
        self._reported_at = time.monotonic()
        self._stopping = ("interrupted" if number == signal.SIGINT else "stopped", self._reported_at)
        self._check_progress(at_once=True)
        if not self._attempt_has_stepped or self._pending is not None:  # nothing to save
            self.roster.kill()
            return self._stopped()
        self.roster.agent.signal(self.roster.names(CONTROLLER, TRAINER), signal.SIGTERM)
        self._say(EVALUATION_STOPS if self._evaluates else stop_message(self.run.config))
        return None

    def _check_stop_timeout(self) -> RunEnding | None:
        if self._stopping is None:
            return None
        since = time.monotonic() - self._stopping[1]
        missing = ", ".join(name for name in self._vital if name not in self._ended)
        if since > self.limits.grace_s:
            self.roster.agent.dump_stacks()
            late = f"recover.grace_s: {missing} did not end within {self.limits.grace_s:g} s, and its step is abandoned"
            return self._stopped(f"{late}; stack traces: logs/*.stacks")
        if self._report_is_due():
            self._say(f"stopping: waiting for {missing} ({since:.0f} s)")
        return None

    # --- readiness and progress

    def _check_readiness(self) -> RunEnding | None:
        missing = self._not_ready()
        if not missing or self._stopping is not None:
            return None
        entries = {name: value for role in ADDRESSED_ROLES for name, value in self.names.find(role).items()}
        for each in missing:
            entry = parse_entry(entries[each.identity.name]) if each.identity.name in entries else None
            if entry and (entry.attempt, entry.incarnation) == (each.identity.attempt, each.identity.incarnation):
                self.roster.ready.add(each.identity)
                self._say(f"  {each.identity.name} ready {each.age_s:.1f} s")
        missing = self._not_ready()
        late = [each for each in missing if each.age_s > self.limits.setup_s]
        why = f"it was not ready within {self.limits.setup_s:g} s ({self.limits.setup_key})"
        if late and (late := self._watchdog.kill_late(late, why)):
            message = not_ready_text(late, self.limits.setup_s, self.limits.setup_key, self.run.directory)
            return RunEnding("failed", FAILED, message)
        for line in self._startup_progress.report_lines(missing):
            self._say(line)
        if not missing and len(self.roster.running) == len(self.roster.processes):
            self._announce(entries)
        return None

    def _not_ready(self) -> list[RunningProcess]:
        addressed = [each for each in self.roster.running.values() if each.identity.role in ADDRESSED_ROLES]
        return [each for each in addressed if each.identity not in self.roster.ready]

    def _announce(self, entries: Mapping[str, str]) -> None:
        servers = self.roster.names(SERVER)
        addresses = [parse_entry(entries[name]).address for name in servers if name in entries]
        if addresses != self._addresses and len(addresses) == len(servers):
            self._addresses = addresses
            self._lifecycle.on_addresses(addresses)

    def _report_is_due(self) -> bool:
        now = time.monotonic()
        if now - self._reported_at < REPORT_S:
            return False
        self._reported_at = now
        return True

    def _check_progress(self, at_once: bool) -> None:
        """Reads new steps and checkpoints from the run directory."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_S and not at_once:
            return
        self._checked_at = now
        size = self._steps_file_bytes()
        if size != self._steps_bytes:
            self._steps_bytes, self._has_stepped, self._attempt_has_stepped = size, True, True
            self._stall_detector.stepped()
            self.policy.step()
        newest = max(complete_steps(self.run.directory), default=0)
        if newest > self._checkpoint and resume_problem(step_folder(self.run.directory, newest)) is None:
            self._checkpoint = newest
            self.policy.checkpoint()
        if self._lifecycle.trains:
            self._report_stall()

    def _report_stall(self) -> None:
        """Says once that no step comes; not while processes start or stop."""
        if self._not_ready() or self._pending is not None:
            self._stall_detector.restarted()
        elif self._stopping is None and not self._ended:
            for line in self._stall_detector.report_lines(
                list(self.roster.running.values()), self.roster.agent.samples(), self.roster.agent.cpu_seconds
            ):
                self._say(line)

    def _steps_file_bytes(self) -> int:
        """Grows with each step; of an evaluation alone with its answers."""
        if self._evaluates:
            return answer_bytes(self.run)
        path = self.run.metrics / f"{Identity(TRAINER, 0).file_name}.jsonl"
        return path.stat().st_size if path.is_file() else 0
