"""The processes of a run and their commands, in the order in which they start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation import Allocation, ParallelStrategy
from areal_like.config.allocation.models import generates, starts_servers, uses_api
from areal_like.config.experiment import GRPOConfig
from areal_like.config.redact import SECRET
from areal_like.models import BUILT_IN, built_in_models, missing_weights_hint, model_folder
from areal_like.process.identity import (
    CONTROLLER,
    EPISODES,
    GPU_SHARE,
    KEEPS_COPY_ON_GPU,
    REWARD,
    SERVER,
    STAGED_BYTES,
    START_AFTER,
    TRAINER,
    Identity,
)
from areal_like.serving.engines.external.command_line import ServerCommand as ServerCommand
from areal_like.serving.engines.external.command_line import ServerSite as ServerSite
from areal_like.serving.engines.external.command_line import flag as flag
from areal_like.serving.engines.registry import engine_spec
from launcher.checks.engines import ENGINE_SEPARATOR
from launcher.plan.environment import base_environment, node_address, trainer_environment
from launcher.plan.host import HostInfo
from launcher.plan.model_config import known_shape
from launcher.plan.placement import PlacementPlan, ProcessPlacement
from launcher.plan.plan import Process
from launcher.plan.purpose import Purpose

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


class ProcessContext(NamedTuple):
    """What all processes of a run share."""

    config: "BaseExperimentConfig"
    allocation: Allocation
    placement: PlacementPlan
    host: HostInfo
    run_dir: str
    num_nodes: int
    command: tuple[str, ...]
    attempt: int = 1
    purpose: Purpose = Purpose.RUN
    staged_bytes: int = 0
    """For new weights on each GPU of the servers."""
    trainer_share: float | None = None
    """The fraction of a shared GPU that the trainer may take."""
    keeps_copy_on_gpu: bool = False
    """Whether the trainer has a copy there of the weights to be sent."""

    def process(
        self, role: str, index: int, placement: ProcessPlacement, command: list[str], env: dict[str, str]
    ) -> Process:
        name = f"{role}/{index}"
        variables = self.host.variables
        base = base_environment(self.config, name, placement, self.run_dir, self.allocation, variables)
        log = (
            f"{self.run_dir}/logs/{Identity(role, index, self.attempt).start_name}.log" if self.config.log.file else ""
        )
        return Process(
            role,
            index,
            placement.node,
            placement.gpus,
            placement.cores,
            placement.threads,
            tuple(command),
            {**base, **env},
            log,
        )


def plan_processes(context: ProcessContext, starts: list[ServerCommand]) -> tuple[Process, ...]:
    """`starts`: the commands of the servers, in order."""
    serving = [*_servers(context, starts), *_attached(context)]
    if context.purpose is Purpose.SERVE:
        return tuple([*_supervision(context), *serving])
    if context.purpose is Purpose.REWARDS:
        scoring = _episodes(context, "areal_like.rollout.episodes.rewards.served_bench")
        return tuple([*_supervision(context), *_reward(context), *scoring])
    serving += _reward(context)
    if context.purpose is Purpose.TRY:
        return tuple([*_supervision(context), *serving, *_episodes(context, "areal_like.rollout.episodes.try_main")])
    return tuple([*_supervision(context), *serving, *_controller(context), *_episodes(context), *_trainers(context)])


def server_starts(context: ProcessContext) -> list[ServerCommand]:
    """What each server starts: the command of an external engine, or an empty one. None where the run uses attached
    servers."""
    if not isinstance(context.config, GRPOConfig) or context.allocation.rollout is None:
        return []
    return [
        _start(context, context.config, index, context.allocation.server(index), placement)
        for index, placement in enumerate(context.placement.servers)
    ]


def _start(
    context: ProcessContext, config: GRPOConfig, index: int, parallel: ParallelStrategy, placement: ProcessPlacement
) -> ServerCommand:
    spec = engine_spec(parallel.backend)
    if spec.command is None:
        return ServerCommand([])
    shape = known_shape(config.actor.path, context.host)
    is_placeholder = spec.distribution is not None and config.cluster.type == "local"
    return spec.command(
        config,
        ServerSite(
            number=index,
            host=config.rollout.host or node_address(placement.node, context.num_nodes),
            port=0,
            run_dir=context.run_dir,
            model=local_path(config.actor.path, context.host),
            on_gpu=bool(placement.gpus),
            tensor=parallel.tensor,
            pipeline=parallel.pipeline,
            cores=placement.cores,
            python=f"<{spec.name}.python>" if is_placeholder else context.host.python,
            memory_bytes=context.host.memory_bytes or 0,
            head_dim=shape.head_dim if shape else None,
        ),
    )


def local_path(path: str, host: HostInfo) -> str:
    """Folders become absolute, as servers may run elsewhere; built-in models become folders, which external engines can
    load. Names on the Hub stay."""
    from pathlib import Path

    if not host.is_here:
        return path
    if (
        path.removeprefix(BUILT_IN) in built_in_models()
        and path.startswith(BUILT_IN)
        and not missing_weights_hint(path)
    ):
        return str(model_folder(path))
    folder = host.directory / Path(path).expanduser()
    return str(folder.resolve()) if path and folder.is_dir() else path


def _supervision(context: ProcessContext) -> Iterator[Process]:
    """The guardian, and the launcher that it forks."""
    for role in ("guardian", "launcher"):
        yield Process(role, 0, 0, (), (), 1, context.command, {}, log="")


def _servers(context: ProcessContext, starts: list[ServerCommand]) -> Iterator[Process]:
    """An engine runs in the process of its server, or the server starts it and serves in front of it. The room for new
    weights is that of the servers of training; others get these through main memory."""
    usual = context.allocation.rollout
    for index, (placement, start) in enumerate(zip(context.placement.servers, starts, strict=True)):
        parallel = context.allocation.server(index)
        is_other = usual is not None and parallel.backend != usual.backend
        is_alike = usual is not None and not is_other and parallel.tensor == usual.tensor
        engine = [ENGINE_SEPARATOR, *start.command] if start.command else []
        staged = {STAGED_BYTES: str(context.staged_bytes)} if context.staged_bytes and is_alike else {}
        command = [*_server(context, index), *(["--kind", parallel.backend] if is_other else []), *engine]
        yield context.process(SERVER, index, placement, command, start.env | staged)


def _attached(context: ProcessContext) -> Iterator[Process]:
    """Servers of ours in front of external ones that already run."""
    if not generates(context.config) or starts_servers(context.config) or uses_api(context.config):
        return
    rollout, placement = context.config.rollout, context.placement.controller
    for index, address in enumerate(rollout.server_addresses):
        command = [*_server(context, index), "--attach", address.strip()]
        yield context.process(SERVER, index, placement, command, {rollout.api_key_var: SECRET})


def _server(context: ProcessContext, index: int) -> list[str]:
    words = [context.host.python, "-m", "areal_like.serving"]
    return [*words, "--run-dir", context.run_dir, "--index", str(index)]


def _reward(context: ProcessContext) -> Iterator[Process]:
    if context.placement.reward is not None:
        command = [context.host.python, "-m", "areal_like.serving.reward_model", "--run-dir", context.run_dir]
        yield context.process(REWARD, 0, context.placement.reward, [*command, "--index", "0"], {})


def _controller(context: ProcessContext) -> Iterator[Process]:
    if generates(context.config):
        command = [context.host.python, "-m", "areal_like.rollout.controller", "--run-dir", context.run_dir]
        yield context.process(CONTROLLER, 0, context.placement.controller, command, {})


def _episodes(context: ProcessContext, module: str = "areal_like.rollout.episodes") -> Iterator[Process]:
    if generates(context.config):
        for index, placement in enumerate(context.placement.episodes):
            command = [context.host.python, "-m", module, "--run-dir", context.run_dir]
            yield context.process(EPISODES, index, placement, [*command, "--index", str(index)], {})


def _trainers(context: ProcessContext) -> Iterator[Process]:
    placements = context.placement.trainers
    if not placements:
        return
    master = node_address(placements[0].node, context.num_nodes)
    for rank, placement in enumerate(placements):
        command = [context.host.python, "-m", "areal_like.training.main", "--run-dir", context.run_dir]
        env = trainer_environment(rank, len(placements), placement, master)
        env |= {KEEPS_COPY_ON_GPU: "1"} if context.keeps_copy_on_gpu else {}
        if context.allocation.shared_device and context.placement.servers:
            env[START_AFTER] = f"{SERVER}/0"
            env |= {} if context.trainer_share is None else {GPU_SHARE: str(context.trainer_share)}
        yield context.process(TRAINER, rank, placement, command, env)
