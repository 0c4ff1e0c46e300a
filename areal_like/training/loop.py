"""The reinforcement learning loop of the trainer: get a batch, compute log-probabilities and advantages, update the
policy, publish its weights.

With a critic it is PPO: the critic predicts values, advantages are relative to these, and the critic is trained on the
returns while servers load the new policy.
"""

import logging
from collections.abc import Collection
from functools import partial

from areal_like.process import pulse
from areal_like.process.exit_codes import DONE, STOPPED_EARLY
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.training.actor import Actor
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.controller_client import NoMoreBatches, TrainerControllerClient
from areal_like.training.critic import Critic, NoCritic
from areal_like.training.fake_data import FakeController
from areal_like.training.held_state import HeldState
from areal_like.training.progress import TrainingProgress
from areal_like.training.samples import SampleLog
from areal_like.training.stop import StopRequest
from areal_like.training.weight_publisher import NoPublisher, WeightPublisher
from areal_like.training.world import World

CONTROLLER_STATE = "controller.frame"

log = logging.getLogger(__name__)


def train(
    run: Run,
    me: Identity,
    world: World,
    actor: Actor,
    controller: TrainerControllerClient | FakeController,
    stop: StopRequest,
    critic: Critic | NoCritic,
) -> int:
    """From the attempt's first step to the end of the run, or until stopped. Returns the exit code."""
    start, limits = run.start_point(), controller.step_limits()
    engines = {"actor": actor.engine, **critic.trained_engines}
    publisher = (
        NoPublisher() if isinstance(controller, FakeController) else WeightPublisher(run, actor.engine, controller)
    )
    checkpoints, progress = CheckpointManager(run, world, limits.steps_per_epoch), TrainingProgress(run, me, world)
    samples = SampleLog(run, me, world)
    with pulse.phase(pulse.LOADING):
        checkpoints.resume(engines, progress)

    def set_limits() -> None:
        for engine in engines.values():
            engine.set_schedule(limits.total_steps)
        checkpoints.set_epoch(limits.steps_per_epoch)

    def parts(completed: int) -> dict[str, bytes]:
        return {CONTROLLER_STATE: controller.state(completed)} if world.is_first else {}

    def checkpoint(completed: int, is_last: bool, evaluated: Collection[str] = ()) -> None:
        if due := checkpoints.due(completed, is_last, evaluated):
            checkpoints.write(completed, due, engines, progress, parts(completed) if due.to_resume else {})

    def finished(completed: int, early: bool) -> None:
        if world.is_first:
            controller.finished(completed, early)

    set_limits()
    log.info("training from step %d to %d; weights go through %s", start.step, limits.total_steps, publisher.reason)
    with pulse.phase(pulse.PUBLISHING):
        publisher.publish(start.step)
    completed, watch = start.step, progress.watch
    watch.take()
    held = HeldState(run, world, stop, checkpoints, engines, progress, parts, partial(finished, early=True))
    with held:
        while completed < limits.total_steps and not stop.is_requested():
            with watch("wait"):
                batch = controller.batch(completed, publisher.check)
            if isinstance(batch, NoMoreBatches):
                log.info("no further batch: %s", batch.reason)
                break
            if controller.limits != limits:
                limits = controller.limits
                set_limits()
            held.begin(completed)
            critic.compute_values(batch, watch)
            actor.compute_logprobs(batch, watch)
            actor.compute_advantages(batch, watch)
            metrics = actor.update(batch, watch)
            completed += 1
            with watch("publish"), pulse.phase(pulse.PUBLISHING):
                publisher.publish(completed)
            samples.write(batch)
            metrics |= critic.update(batch, watch)
            held.end()
            evaluated = controller.done(batch.step) if world.is_first else ()
            progress.step(completed, metrics)
            with watch("checkpoint"), pulse.phase(pulse.SAVING):
                checkpoint(completed, completed == limits.total_steps, evaluated)

    stopped_early = completed < limits.total_steps
    with pulse.phase(pulse.SAVING):
        if stopped_early:
            checkpoint(completed, is_last=True)
        checkpoints.wait()
        publisher.wait()
    progress.close()
    finished(completed, stopped_early)
    publisher.close(stopped_early)
    return STOPPED_EARLY if stopped_early else DONE
