"""The processes of a run and their commands, in the order in which they start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, starts_servers
from areal_like.config.experiment import GRPOConfig
from areal_like.config.redact import SECRET
from areal_like.models import BUILT_IN, built_in_models, missing_weights_hint, model_folder
from areal_like.process.identity import CONTROLLER, EPISODES, REWARD, SERVER, TRAINER, Identity
from areal_like.serving.engines.external.command_line import ServerCommand as ServerCommand
from areal_like.serving.engines.external.command_line import ServerSite as ServerSite
from areal_like.serving.engines.external.command_line import flag as flag
from launcher.checks.engines import ENGINE_SEPARATOR, EXTERNAL_ENGINES
from launcher.plan.environment import base_environment, node_address, trainer_environment
from launcher.plan.host import HostInfo
from launcher.plan.placement import PlacementPlan, ProcessPlacement
from launcher.plan.plan import Process

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
    serves: bool = False
    """Whether only servers are started."""

    def process(
        self, role: str, index: int, placement: ProcessPlacement, command: list[str], env: dict[str, str]
    ) -> Process:
        name = f"{role}/{index}"
        base = base_environment(self.config, name, placement, self.run_dir, self.allocation.num_gpus > 0)
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
    if context.serves:
        return tuple([*_supervision(context), *serving])
    serving += _reward(context)
    return tuple([*_supervision(context), *serving, *_controller(context), *_episodes(context), *_trainers(context)])


def server_starts(context: ProcessContext) -> list[ServerCommand]:
    """The command of each server; empty where the run uses attached servers."""
    if not isinstance(context.config, GRPOConfig) or context.allocation.rollout is None:
        return []
    rollout, parallel = context.config.rollout, context.allocation.rollout
    return [
        server_start(
            parallel.backend,
            context.config,
            ServerSite(
                number=index,
                host=rollout.host or node_address(placement.node, context.num_nodes),
                port=rollout.port + index if rollout.port and parallel.backend not in EXTERNAL_ENGINES else 0,
                run_dir=context.run_dir,
                model=local_path(context.config.actor.path, context.host),
                on_gpu=bool(placement.gpus),
                tensor=parallel.tensor,
                pipeline=parallel.pipeline,
                cores=placement.cores,
                python=_python(context, parallel.backend),
                memory_bytes=context.host.memory_bytes or 0,
            ),
        )
        for index, placement in enumerate(context.placement.servers)
    ]


def _python(context: ProcessContext, backend: str) -> str:
    """External engines have their own Python; on the nodes of a cluster its path is unknown."""
    if backend not in EXTERNAL_ENGINES or context.config.cluster.type != "local":
        return context.host.python
    return f"<{backend}.python>"


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
    """The embedded engine is one process; a server of ours starts an external engine and serves in front of it."""
    for index, (placement, start) in enumerate(zip(context.placement.servers, starts, strict=True)):
        backend = context.allocation.rollout.backend if context.allocation.rollout else ""
        command = (
            [*_external_server(context, index), ENGINE_SEPARATOR, *start.command]
            if backend in EXTERNAL_ENGINES
            else start.command
        )
        yield context.process(SERVER, index, placement, command, start.env)


def _attached(context: ProcessContext) -> Iterator[Process]:
    """Servers of ours in front of external ones that already run."""
    if not generates(context.config) or starts_servers(context.config):
        return
    rollout, placement = context.config.rollout, context.placement.controller
    for index, address in enumerate(rollout.server_addresses):
        command = [*_external_server(context, index), "--attach", address.strip()]
        yield context.process(SERVER, index, placement, command, {rollout.api_key_var: SECRET})


def _external_server(context: ProcessContext, index: int) -> list[str]:
    module = [context.host.python, "-m", "areal_like.serving.engines.external"]
    return [*module, "--run-dir", context.run_dir, "--index", str(index)]


def _reward(context: ProcessContext) -> Iterator[Process]:
    if context.placement.reward is not None:
        command = [context.host.python, "-m", "areal_like.serving.reward_model", "--run-dir", context.run_dir]
        yield context.process(REWARD, 0, context.placement.reward, [*command, "--index", "0"], {})


def _controller(context: ProcessContext) -> Iterator[Process]:
    if generates(context.config):
        command = [context.host.python, "-m", "areal_like.rollout.controller", "--run-dir", context.run_dir]
        yield context.process(CONTROLLER, 0, context.placement.controller, command, {})


def _episodes(context: ProcessContext) -> Iterator[Process]:
    if generates(context.config):
        for index, placement in enumerate(context.placement.episodes):
            command = [context.host.python, "-m", "areal_like.rollout.episodes", "--run-dir", context.run_dir]
            yield context.process(EPISODES, index, placement, [*command, "--index", str(index)], {})


def _trainers(context: ProcessContext) -> Iterator[Process]:
    placements = context.placement.trainers
    if not placements:
        return
    master = node_address(placements[0].node, context.num_nodes)
    for rank, placement in enumerate(placements):
        command = [context.host.python, "-m", "areal_like.training.main", "--run-dir", context.run_dir]
        yield context.process(
            TRAINER, rank, placement, command, trainer_environment(rank, len(placements), placement, master)
        )


def server_start(backend: str, config: "GRPOConfig", spec: ServerSite) -> ServerCommand:
    """The command of one server of this backend."""
    if backend == "vllm":
        from areal_like.serving.engines.vllm.command import vllm_command

        return vllm_command(config, spec)
    if backend == "sglang":
        from areal_like.serving.engines.sglang.command import sglang_command

        return sglang_command(config, spec)
    if backend == "embedded":
        return embedded_server_start(spec)
    raise ValueError(f"rollout.backend: unknown server {backend!r}; known are embedded, vllm and sglang")


def embedded_server_start(spec: ServerSite) -> ServerCommand:
    """The embedded server reads the run's config.yaml and publishes its port."""
    module = ["-m", "areal_like.serving.engines.embedded", "--run-dir", spec.run_dir, "--index", str(spec.number)]
    return ServerCommand([spec.python, *module])
