"""Reinforcement learning, as the trainer sees it: pull a batch, learn from it, publish what was learnt."""

import logging

from areal_like.process.body import DONE, STOPPED_EARLY
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.training.actor import Actor
from areal_like.training.checkpoint import Checkpoints
from areal_like.training.progress import Progress
from areal_like.training.publisher import Publisher
from areal_like.training.rollouts import Rollouts, Stop
from areal_like.training.stop import StopRequest
from areal_like.training.world import World

CONTROLLER_PART = "controller.frame"

log = logging.getLogger(__name__)


def train(run: Run, me: Identity, world: World, actor: Actor, rollouts: Rollouts, stop: StopRequest) -> int:
    """From where the attempt begins to the end of the run, or to where it is stopped. Returns the exit code."""
    start, engine, facts = run.start_point(), actor.engine, rollouts.facts()
    engine.set_schedule(facts.total_steps)
    publisher = Publisher(run, engine, spans_nodes=run.config.cluster.n_nodes > 1)
    checkpoints, progress = Checkpoints(run, world, facts.steps_per_epoch), Progress(run, me, world)
    if start.checkpoint is not None:
        checkpoints.resume(start.checkpoint, engine, progress)

    def publish(version: int) -> None:
        folder = publisher.publish(version)
        if world.is_first:
            rollouts.publish(version, folder, publisher.num_bytes)

    def checkpoint(completed: int, is_last: bool) -> None:
        if due := checkpoints.due(completed, is_last):
            keeps_controller = world.is_first and due.to_resume
            parts = {CONTROLLER_PART: rollouts.state(completed)} if keeps_controller else {}
            checkpoints.write(completed, due, engine, progress, parts)

    log.info("training from step %d to %d; weights go through %s", start.step, facts.total_steps, publisher.reason)
    publish(start.step)
    completed = start.step
    progress.watch.take()
    while completed < facts.total_steps and not stop.was_asked_for():
        with progress.watch("wait"):
            batch = rollouts.batch(completed)
        if isinstance(batch, Stop):
            log.info("there is no further batch: %s", batch.reason)
            break
        metrics = actor.step(batch, progress.watch)
        completed += 1
        with progress.watch("publish"):
            publish(completed)
        if world.is_first:
            rollouts.done(batch.step)
        progress.step(completed, metrics)
        with progress.watch("checkpoint"):
            checkpoint(completed, is_last=completed == facts.total_steps)

    stopped_early = completed < facts.total_steps
    if stopped_early:
        checkpoint(completed, is_last=True)
    checkpoints.wait()
    if world.is_first:
        rollouts.finished(completed, stopped_early)
    return STOPPED_EARLY if stopped_early else DONE
