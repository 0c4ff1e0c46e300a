"""Every process of a run, in the order in which it comes to life."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, starts_servers
from areal_like.config.experiment import GRPOConfig
from areal_like.config.redact import SECRET
from areal_like.models import BUILT_IN, built_in_models, missing_weights_hint, model_folder
from areal_like.process.identity import CONTROLLER, EPISODES, REWARD, SERVER, TRAINER, Identity
from areal_like.serving.command_line import ServerCommand as ServerCommand
from areal_like.serving.command_line import ServerSite as ServerSite
from areal_like.serving.command_line import flag as flag
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
    """What the processes of one run have in common."""

    config: "BaseExperimentConfig"
    allocation: Allocation
    placement: PlacementPlan
    host: HostInfo
    run_dir: str
    num_nodes: int
    command: tuple[str, ...]
    attempt: int = 1
    serves: bool = False
    """Whether servers alone are to be started."""

    def process(
        self, role: str, index: int, seat: ProcessPlacement, command: list[str], env: dict[str, str]
    ) -> Process:
        name = f"{role}/{index}"
        base = base_environment(self.config, name, seat, self.run_dir, self.allocation.num_gpus > 0)
        log = (
            f"{self.run_dir}/logs/{Identity(role, index, self.attempt).start_name}.log" if self.config.log.file else ""
        )
        return Process(
            role, index, seat.node, seat.gpus, seat.cores, seat.threads, tuple(command), {**base, **env}, log
        )


def plan_processes(site: ProcessContext, starts: list[ServerCommand]) -> tuple[Process, ...]:
    """`starts` are those of the servers, in order."""
    serving = [*_servers(site, starts), *_attached(site)]
    if site.serves:
        return tuple([*_supervision(site), *serving])
    serving += _reward(site)
    return tuple([*_supervision(site), *serving, *_controller(site), *_episodes(site), *_trainers(site)])


def server_starts(site: ProcessContext) -> list[ServerCommand]:
    """How each server would be started; none where the run uses servers that are there already."""
    if not isinstance(site.config, GRPOConfig) or site.allocation.rollout is None:
        return []
    rollout, parallel = site.config.rollout, site.allocation.rollout
    return [
        server_start(
            parallel.backend,
            site.config,
            ServerSite(
                number=index,
                host=rollout.host or node_address(seat.node, site.num_nodes),
                port=rollout.port + index if rollout.port and parallel.backend not in EXTERNAL_ENGINES else 0,
                run_dir=site.run_dir,
                model=local_path(site.config.actor.path, site.host),
                on_gpu=bool(seat.gpus),
                tensor=parallel.tensor,
                pipeline=parallel.pipeline,
                cores=seat.cores,
                python=_python(site, parallel.backend),
                memory_bytes=site.host.memory_bytes or 0,
            ),
        )
        for index, seat in enumerate(site.placement.servers)
    ]


def _python(site: ProcessContext, backend: str) -> str:
    """An engine of others has an environment of its own; on the nodes of a cluster that is not known here."""
    if backend not in EXTERNAL_ENGINES or site.config.cluster.type != "local":
        return site.host.python
    return f"<{backend}.python>"


def local_path(path: str, host: HostInfo) -> str:
    """A folder is named from the root, since servers may run elsewhere; so is a model that comes with the package, of
    which engines of others know nothing. A name on the Hub stays as it is."""
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


def _supervision(site: ProcessContext) -> Iterator[Process]:
    """The command's first process, and the launcher that it forks."""
    for role in ("guardian", "launcher"):
        yield Process(role, 0, 0, (), (), 1, site.command, {}, log="")


def _servers(site: ProcessContext, starts: list[ServerCommand]) -> Iterator[Process]:
    """Embedded servers, and server processes that start external engines."""
    for index, (seat, start) in enumerate(zip(site.placement.servers, starts, strict=True)):
        backend = site.allocation.rollout.backend if site.allocation.rollout else ""
        command = (
            [*_external_server(site, index), ENGINE_SEPARATOR, *start.command]
            if backend in EXTERNAL_ENGINES
            else start.command
        )
        yield site.process(SERVER, index, seat, command, start.env)


def _attached(site: ProcessContext) -> Iterator[Process]:
    """Server processes before servers that run already."""
    if not generates(site.config) or starts_servers(site.config):
        return
    rollout, seat = site.config.rollout, site.placement.controller
    for index, address in enumerate(rollout.server_addresses):
        command = [*_external_server(site, index), "--attach", address.strip()]
        yield site.process(SERVER, index, seat, command, {rollout.api_key_var: SECRET})


def _external_server(site: ProcessContext, index: int) -> list[str]:
    module = [site.host.python, "-m", "areal_like.serving.external"]
    return [*module, "--run-dir", site.run_dir, "--index", str(index)]


def _reward(site: ProcessContext) -> Iterator[Process]:
    if site.placement.reward is not None:
        command = [site.host.python, "-m", "areal_like.serving.reward_model", "--run-dir", site.run_dir]
        yield site.process(REWARD, 0, site.placement.reward, [*command, "--index", "0"], {})


def _controller(site: ProcessContext) -> Iterator[Process]:
    if generates(site.config):
        command = [site.host.python, "-m", "areal_like.rollout.controller", "--run-dir", site.run_dir]
        yield site.process(CONTROLLER, 0, site.placement.controller, command, {})


def _episodes(site: ProcessContext) -> Iterator[Process]:
    if generates(site.config):
        for index, seat in enumerate(site.placement.episodes):
            command = [site.host.python, "-m", "areal_like.rollout.episodes", "--run-dir", site.run_dir]
            yield site.process(EPISODES, index, seat, [*command, "--index", str(index)], {})


def _trainers(site: ProcessContext) -> Iterator[Process]:
    seats = site.placement.trainers
    if not seats:
        return
    master = node_address(seats[0].node, site.num_nodes)
    for rank, seat in enumerate(seats):
        command = [site.host.python, "-m", "areal_like.training.main", "--run-dir", site.run_dir]
        yield site.process(TRAINER, rank, seat, command, trainer_environment(rank, len(seats), seat, master))


def server_start(backend: str, config: "GRPOConfig", spec: ServerSite) -> ServerCommand:
    """The start of one server of this backend."""
    if backend == "vllm":
        from areal_like.serving.vllm.command import vllm_command

        return vllm_command(config, spec)
    if backend == "sglang":
        from areal_like.serving.sglang.command import sglang_command

        return sglang_command(config, spec)
    if backend == "embedded":
        return embedded_server_start(spec)
    raise ValueError(f"rollout.backend: no server is called {backend!r}; there are embedded, vllm and sglang")


def embedded_server_start(spec: ServerSite) -> ServerCommand:
    """Our own server reads everything from the run's config.yaml and publishes the port that it was given."""
    module = ["-m", "areal_like.serving.embedded", "--run-dir", spec.run_dir, "--index", str(spec.number)]
    return ServerCommand([spec.python, *module])
