"""What the controller writes into the run directory: the ledger, metrics, and the answers of evaluations."""

import logging
from collections.abc import Callable

from areal_like.observe.metrics import STEP_ERROR
from areal_like.observe.writer import MetricWriter
from areal_like.process.identity import Identity
from areal_like.process.ownership import Ownership
from areal_like.process.run import LEDGER, Run
from areal_like.rollout.evaluation.answer_files import AnswerFiles
from areal_like.rollout.evaluation.tracker_samples import EvaluationSamples
from areal_like.rollout.ledger import Ledger
from areal_like.rollout.loop import RolloutLoop

JUDGED = "judged"
"""Event of the ledger: what the answers of the first step leave to learn."""
OWNERSHIP_S = 0.5
"""For so long the directory counts as the run's own: there are many events in a second."""

log = logging.getLogger("areal_like.rollout.controller")


class Records:
    def __init__(self, run: Run, me: Identity) -> None:
        self._ownership = Ownership.of_process(run, OWNERSHIP_S)
        self._ownership.require()
        self._logs_events = run.config.rollout.enable_rollout_tracing
        self._ledger = Ledger(run.rollouts / LEDGER, me.attempt)
        self._metrics = MetricWriter(run, me)
        self._samples = EvaluationSamples(run, me)
        self.answers = AnswerFiles(run)

    def write(self, loop: RolloutLoop, take_times: Callable[[], dict[str, float]]) -> None:
        """What the loop has collected since the last call. A step that it reports gets the times that are taken."""
        self._ownership.require()
        if loop.events:
            self._ledger.write(loop.events)
            for event in loop.events:
                if event["event"] == JUDGED:
                    log.info("answers of the first step: %s", event["text"])
                if self._logs_events:
                    log.info("rollout: %s", " ".join(f"{name}={value}" for name, value in event.items()))
            loop.events.clear()
        for step, values, error in loop.reports:
            self._metrics.write(step, {**values, **take_times()}, error, STEP_ERROR)
        loop.reports.clear()
        if loop.evaluations.current is not None:
            self.answers.add(loop.evaluations.current)
        while loop.evaluated:
            evaluation, (version, values) = loop.evaluated.pop(0), loop.scores.pop(0)
            self.answers.complete(evaluation)
            error, name = evaluation.most_frequent_error[0], evaluation.evaluated.name
            self._metrics.write(version, values, error, benchmark=name)
            self._samples.write(evaluation)
        for warning in loop.warnings:
            log.warning("%s", warning)
        loop.warnings.clear()

    def sync(self) -> None:
        """What was written of the steps so far survives a crash of the machine, as the checkpoint will."""
        self._ledger.sync()
        self._metrics.sync()

    def close(self) -> None:
        self._ledger.close()
