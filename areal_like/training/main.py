"""Trainer process: `python -m areal_like.training.main --run-dir D`, with torchrun's environment variables."""

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from areal_like.process import pulse
from areal_like.process.entrypoint import end_process, run_process
from areal_like.process.errors import Failure
from areal_like.process.identity import PROCESS, Identity, has_token
from areal_like.process.run import Run

if TYPE_CHECKING:
    from areal_like.config.sections.train_engine import TrainEngineConfig
    from areal_like.training.critic import Critic, NoCritic
    from areal_like.training.engine import TrainEngine
    from areal_like.training.reference import NoReference, ReferenceModel
    from areal_like.training.stop import StopRequest
    from areal_like.training.world import World

log = logging.getLogger(__name__)


def main(run: Run, me: Identity) -> int:
    """Joins the other ranks, loads the model, and trains."""
    from areal_like.config.checks.config_checks import refuse_config

    refuse_config(run.config)  # before anything heavy is imported
    is_supervised = not hasattr(run.config, "actor")
    if not is_supervised and run.config.train_dataset.fake is None and not has_token():
        raise Failure(
            "reinforcement learning needs servers and a controller, which the launcher starts: python -m launcher "
            f"resume={run.directory}"
        )
    import torch
    import transformers

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    from areal_like.training.out_of_memory import out_of_memory
    from areal_like.training.start_order import wait_for_server
    from areal_like.training.stop import StopRequest
    from areal_like.training.torch_compile import compile_failure, fall_back_later
    from areal_like.training.world import open_world, require_gpus

    require_gpus(run.config.cluster.n_gpus_per_node)
    wait_for_server(run, me)
    fall_back_later(run.config)
    section = run.config.model if is_supervised else run.config.actor
    world = open_world(section.dist_timeout_s)
    stop = StopRequest(world)
    stop.listen()
    try:
        code = (_supervised if is_supervised else _reinforcement)(run, me, world, stop)
    except torch.OutOfMemoryError as error:
        raise out_of_memory(error, run.config) from error
    except Exception as error:  # not all of the compiler's are a RuntimeError
        if (failure := compile_failure(error, run.config)) is None:
            raise
        raise failure from error
    world.close()
    return code


def _supervised(run: Run, me: Identity, world: "World", stop: "StopRequest") -> int:
    from areal_like.training.fake_data import FakeSupervisedData
    from areal_like.training.reward_model import RewardModelLearner
    from areal_like.training.supervised import SupervisedLearner, train
    from areal_like.training.supervised_data import SupervisedData
    from areal_like.training.token_export import NO_EXPORT, TokenExport

    config = run.config
    # While a batch is trained on, the next one is tokenized by all threads of this process.
    os.environ |= {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    rows = None if config.train_dataset.fake is not None else SupervisedData(run)
    engine = load_trained_engine(run, config.model, "model", world)
    learner_class = RewardModelLearner if config.train_dataset.type == "rw" else SupervisedLearner
    export = TokenExport(run, world) if config.enable_token_export else NO_EXPORT
    learner, data = learner_class(engine, config.seed, export), rows or FakeSupervisedData(config, engine)
    with pulse.phase(pulse.STEP):
        return train(run, me, world, learner, data, stop)


def _reinforcement(run: Run, me: Identity, world: "World", stop: "StopRequest") -> int:
    from areal_like.data.user_code import SearchFolders
    from areal_like.training.actor import Actor
    from areal_like.training.controller_client import TrainerControllerClient
    from areal_like.training.fake_data import FakeController
    from areal_like.training.loop import train
    from areal_like.training.token_export import NO_EXPORT, TokenExport

    config = run.config
    engine = load_trained_engine(run, config.actor, "actor", world)
    reference, critic = _reference(run, engine), _critic(run, world)
    export = TokenExport(run, world) if config.enable_token_export else NO_EXPORT
    actor = Actor(engine, reference, config.actor, config.seed, SearchFolders(run.folder, run.cwd), export)
    fake = config.train_dataset.fake is not None
    controller = FakeController(config, engine) if fake else TrainerControllerClient(run, me, world.rank, world.size)
    try:
        with pulse.phase(pulse.STEP):
            return train(run, me, world, actor, controller, stop, critic)
    finally:
        controller.close()


def _reference(run: Run, actor: "TrainEngine") -> "ReferenceModel | NoReference":
    """None without a KL penalty; else a second model, or the base of the actor's adapter."""
    from areal_like.config.allocation.models import reference_is_base
    from areal_like.models import model_folder
    from areal_like.training.engine import TrainEngine
    from areal_like.training.reference import BaseModelReference, NoReference, ReferenceModel

    if not run.config.actor.kl_ctl:
        return NoReference()
    frozen = replace(run.config.ref, optimizer=None)
    if reference_is_base(run.config):
        log.info("ref is the actor with its adapter disabled: no second model is loaded")
        return ReferenceModel(BaseModelReference(actor, frozen, "ref"))
    return ReferenceModel(TrainEngine(frozen, "ref", model_folder(frozen.path, run.cwd), actor.world, run.config.seed))


def _critic(run: Run, world: "World") -> "Critic | NoCritic":
    """That of an experiment with a `critic`."""
    from areal_like.training.critic import Critic, NoCritic

    if not hasattr(run.config, "critic"):
        return NoCritic()
    config = run.config.critic
    return Critic(load_trained_engine(run, config, "critic", world, "critic"), config, run.config.seed)


def load_trained_engine(
    run: Run, config: "TrainEngineConfig", section: str, world: "World", part: str | None = None
) -> "TrainEngine":
    """The engine of a trained model, from the attempt's checkpoint where there is one (in its subfolder `part`, if
    given), else from the configuration. A frozen model is not in checkpoints."""
    from areal_like.models import model_folder
    from areal_like.training.checkpoint_check import check_complete
    from areal_like.training.engine import TrainEngine
    from areal_like.training.rank_vote import RankVote

    start = run.start_point()
    checkpoint = start.checkpoint if config.optimizer is not None else None
    if checkpoint is not None and part is None and not start.is_checked:
        check_complete(checkpoint, RankVote(world, config.dist_timeout_s, f"{section}.dist_timeout_s"))
    elif checkpoint is not None and part is not None:
        root, checkpoint = checkpoint, checkpoint / part
        if not checkpoint.is_dir():
            raise Failure(
                f"resume: {root} was written by a run without a {section}; resume with a configuration like that run's"
            )
    return TrainEngine(config, section, model_folder(config.path, run.cwd), world, run.config.seed, checkpoint)


if __name__ == "__main__":
    # Plain torchrun does not set the process name.
    os.environ.setdefault(PROCESS, f"trainer/{os.environ.get('RANK', '0')}")
    # Also because torch's threads are joined at the end: gloo's have aborted processes there on a busy machine, which
    # would make a completed run count as failed.
    end_process(run_process(main))
