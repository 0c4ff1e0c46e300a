"""A trainer rank: `python -m areal_like.training.main --run-dir D`, with the environment that torchrun gives."""

import logging
import os
import sys
from typing import TYPE_CHECKING

from areal_like.process.body import body
from areal_like.process.identity import PROCESS, Identity
from areal_like.process.run import Run

if TYPE_CHECKING:
    from areal_like.config.train_engine import TrainEngineConfig
    from areal_like.training.engine import Engine
    from areal_like.training.stop import StopRequest
    from areal_like.training.world import World

log = logging.getLogger(__name__)


def main(run: Run, me: Identity) -> int:
    """Meets the other ranks, loads the model, and trains."""
    from areal_like.config.limits import refuse

    refuse(run.config)  # before anything heavy is imported
    import torch
    import transformers

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    from areal_like.training.stop import StopRequest
    from areal_like.training.world import open_world

    is_supervised = run.experiment == "sft"
    section = run.config.model if is_supervised else run.config.actor
    world = open_world(section.dist_timeout_s)
    stop = StopRequest(world)
    stop.listen()
    code = (_supervised if is_supervised else _reinforcement)(run, me, world, stop)
    world.close()
    return code


def _supervised(run: Run, me: Identity, world: "World", stop: "StopRequest") -> int:
    from areal_like.training.supervised import train
    from areal_like.training.supervised_data import SupervisedData

    data = SupervisedData(run)
    return train(run, me, world, load_trained(run, run.config.model, "model", world), data, stop)


def _reinforcement(run: Run, me: Identity, world: "World", stop: "StopRequest") -> int:
    from areal_like.models import model_folder
    from areal_like.training.actor import Actor
    from areal_like.training.engine import Engine
    from areal_like.training.loop import train
    from areal_like.training.rollouts import Rollouts

    config = run.config
    engine, reference = load_trained(run, config.actor, "actor", world), None
    if config.actor.kl_ctl > 0:
        reference = Engine(config.ref, "ref", model_folder(config.ref.path, run.cwd), world, config.seed)
    actor = Actor(engine, reference, config.actor, config.seed)
    rollouts = Rollouts(run, me, world.rank, world.size)
    try:
        return train(run, me, world, actor, rollouts, stop)
    finally:
        rollouts.close()


def load_trained(run: Run, config: "TrainEngineConfig", where: str, world: "World") -> "Engine":
    """The model that is trained: as the attempt's checkpoint has it, else as the configuration says."""
    from areal_like.models import model_folder
    from areal_like.training.checkpoint import check_whole
    from areal_like.training.engine import Engine

    checkpoint = run.start_point().checkpoint
    if checkpoint is not None:
        if world.is_first:
            check_whole(checkpoint)
        world.barrier()
    return Engine(config, where, model_folder(config.path, run.cwd), world, run.config.seed, checkpoint)


if __name__ == "__main__":
    # Under plain torchrun nobody else says who a rank is.
    os.environ.setdefault(PROCESS, f"trainer/{os.environ.get('RANK', '0')}")
    code = body(main)
    logging.shutdown()
    sys.stdout.flush()
    # Everything is written. What is left are torch's threads, and those of gloo have aborted processes that tore them
    # down at their end, on a busy machine: a run that is done would count as failed.
    os._exit(code)
