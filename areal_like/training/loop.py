"""The reinforcement learning loop of the trainer: get a batch, train on it, publish the weights.

With a critic it is PPO: the critic predicts values, the policy is trained on advantages over these, and the critic is
trained on the returns while servers load the new policy.
"""

import logging

from areal_like.process.exit_codes import DONE, STOPPED_EARLY
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.training.actor import Actor
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.controller_client import NoMoreBatches, TrainerControllerClient
from areal_like.training.critic import Critic
from areal_like.training.fake_data import FakeController
from areal_like.training.progress import TrainingProgress
from areal_like.training.samples import SampleLog
from areal_like.training.stop import StopRequest
from areal_like.training.weight_publisher import WeightPublisher
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
    critic: Critic | None = None,
) -> int:
    """From the attempt's first step to the end of the run, or until stopped. Returns the exit code."""
    start, limits = run.start_point(), controller.step_limits()
    engines = {"actor": actor.engine}
    if critic is not None and critic.learns:
        engines["critic"] = critic.engine
    for engine in engines.values():
        engine.set_schedule(limits.total_steps)
    publisher = (
        WeightPublisher(run, actor.engine, controller) if isinstance(controller, TrainerControllerClient) else None
    )
    checkpoints, progress = CheckpointManager(run, world, limits.steps_per_epoch), TrainingProgress(run, me, world)
    samples = SampleLog(run, me, world)
    if start.checkpoint is not None:
        checkpoints.resume(start.checkpoint, engines, progress)

    def publish(version: int) -> None:
        if publisher is not None:
            publisher.publish(version)

    def checkpoint(completed: int, is_last: bool) -> None:
        if due := checkpoints.due(completed, is_last):
            has_controller_state = world.is_first and due.to_resume
            parts = {CONTROLLER_STATE: controller.state(completed)} if has_controller_state else {}
            checkpoints.write(completed, due, engines, progress, parts)

    transport = publisher.reason if publisher is not None else "nothing: there are no servers"
    log.info("training from step %d to %d; weights go through %s", start.step, limits.total_steps, transport)
    publish(start.step)
    completed = start.step
    progress.watch.take()
    while completed < limits.total_steps and not stop.is_requested():
        with progress.watch("wait"):
            batch = controller.batch(completed)
        if isinstance(batch, NoMoreBatches):
            log.info("no further batch: %s", batch.reason)
            break
        if critic is not None:
            critic.compute_values(batch, progress.watch)
        metrics = actor.step(batch, progress.watch)
        completed += 1
        with progress.watch("publish"):
            publish(completed)
        samples.write(batch)
        if critic is not None:
            metrics |= critic.step(batch, progress.watch)
        if world.is_first:
            controller.done(batch.step)
        progress.step(completed, metrics)
        with progress.watch("checkpoint"):
            checkpoint(completed, is_last=completed == limits.total_steps)

    stopped_early = completed < limits.total_steps
    if stopped_early:
        checkpoint(completed, is_last=True)
    checkpoints.wait()
    progress.close()
    if world.is_first:
        controller.finished(completed, stopped_early)
    if publisher is not None:
        publisher.close(stopped_early)
    return STOPPED_EARLY if stopped_early else DONE
