"""Every process of a run, in the order in which it comes to life."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.experiment import generates
from areal_like.config.experiment import GRPOConfig
from areal_like.config.redact import SECRET
from areal_like.process.identity import CONTROLLER, EPISODES, REWARD, SERVER, TRAINER
from launcher.plan.environment import base_environment, node_address, trainer_environment
from launcher.plan.host import Host
from launcher.plan.placement import Placement, Seat
from launcher.plan.plan import Process
from launcher.plan.servers import ServerSpec, ServerStart, start_server

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


class Site(NamedTuple):
    """What the processes of one run have in common."""

    config: "BaseExperimentConfig"
    allocation: Allocation
    placement: Placement
    host: Host
    run_dir: str
    num_nodes: int
    command: tuple[str, ...]

    def process(self, role: str, index: int, seat: Seat, command: list[str], env: dict[str, str]) -> Process:
        name = f"{role}/{index}"
        base = base_environment(self.config, name, seat, self.run_dir, self.allocation.num_gpus > 0)
        log = f"{self.run_dir}/logs/{role}-{index}.log"
        return Process(
            role, index, seat.node, seat.gpus, seat.cores, seat.threads, tuple(command), {**base, **env}, log
        )


def plan_processes(site: Site, starts: list[ServerStart]) -> tuple[Process, ...]:
    """`starts` are those of the servers, in order."""
    serving = [*_servers(site, starts), *_reward(site)]
    return tuple([*_supervision(site), *serving, *_controller(site), *_episodes(site), *_trainers(site)])


def server_starts(site: Site) -> list[ServerStart]:
    """How each server would be started; none where the run uses servers that are there already."""
    if not isinstance(site.config, GRPOConfig) or site.allocation.rollout is None:
        return []
    rollout, parallel = site.config.rollout, site.allocation.rollout
    return [
        start_server(
            parallel.backend,
            site.config,
            ServerSpec(
                number=index,
                host=rollout.host or node_address(seat.node, site.num_nodes),
                port=rollout.port + index if rollout.port else 0,
                run_dir=site.run_dir,
                model=local_path(site.config.actor.path, site.host),
                on_gpu=bool(seat.gpus),
                tensor=parallel.tensor,
                pipeline=parallel.pipeline,
                cores=seat.cores,
                python=site.host.python,
            ),
        )
        for index, seat in enumerate(site.placement.servers)
    ]


def local_path(path: str, host: Host) -> str:
    """A folder is named from the root, since servers may run elsewhere; a name on the Hub stays as it is."""
    from pathlib import Path

    folder = host.directory / Path(path).expanduser()
    return str(folder.resolve()) if path and folder.is_dir() else path


def _supervision(site: Site) -> Iterator[Process]:
    """The command's first process, and the launcher that it forks."""
    for role in ("guardian", "launcher"):
        yield Process(role, 0, 0, (), (), 1, site.command, {}, f"{site.run_dir}/logs/{role}-0.log")


def _servers(site: Site, starts: list[ServerStart]) -> Iterator[Process]:
    for index, (seat, start) in enumerate(zip(site.placement.servers, starts, strict=True)):
        yield site.process(SERVER, index, seat, start.command, start.env)


def _reward(site: Site) -> Iterator[Process]:
    if site.placement.reward is not None:
        command = [site.host.python, "-m", "areal_like.serving.embedded.reward", "--run-dir", site.run_dir]
        yield site.process(REWARD, 0, site.placement.reward, [*command, "--index", "0"], {})


def _controller(site: Site) -> Iterator[Process]:
    if generates(site.config):
        command = [site.host.python, "-m", "areal_like.rollout.controller", "--run-dir", site.run_dir]
        yield site.process(CONTROLLER, 0, site.placement.controller, command, _api_key(site.config))


def _episodes(site: Site) -> Iterator[Process]:
    if generates(site.config):
        for index, seat in enumerate(site.placement.episodes):
            command = [site.host.python, "-m", "areal_like.rollout.episodes", "--run-dir", site.run_dir]
            yield site.process(EPISODES, index, seat, [*command, "--index", str(index)], _api_key(site.config))


def _api_key(config: GRPOConfig) -> dict[str, str]:
    return {config.rollout.api_key_var: SECRET} if config.rollout.server_addresses else {}


def _trainers(site: Site) -> Iterator[Process]:
    seats = site.placement.trainers
    if not seats:
        return
    master = node_address(seats[0].node, site.num_nodes)
    for rank, seat in enumerate(seats):
        command = [site.host.python, "-m", "areal_like.training.main", "--run-dir", site.run_dir]
        yield site.process(TRAINER, rank, seat, command, trainer_environment(rank, len(seats), seat, master))
