"""Checks of `evaluator.backend`: servers for evaluations alone, beside those of training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.evaluators import num_evaluators
from areal_like.config.allocation.grammar import parse_server
from areal_like.config.allocation.models import generates, gpus_per_node, servers_on_cpu, starts_servers
from areal_like.config.problems import Problem, plural
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "evaluator.backend"


def evaluator_problems(config: "BaseExperimentConfig", allocation: Allocation) -> Iterator[Problem]:
    rollout = allocation.rollout
    if not generates(config) or config.evaluator.backend is None:
        return
    if not starts_servers(config):
        yield Problem(KEY, "adds servers to those that a run starts, and rollout.server_addresses names others")
    if rollout is None:
        return
    written = parse_server(config.evaluator.backend)
    dims, own = written.dims, f"{rollout.backend}:d1"
    own += f"t{rollout.tensor}" * (rollout.tensor > 1) + f"p{rollout.pipeline}" * (rollout.pipeline > 1)
    is_other = written.backend not in (None, rollout.backend)
    if is_other or (dims is not None and (dims.tensor, dims.pipeline) != (rollout.tensor, rollout.pipeline)):
        yield Problem(KEY, f"is {written}, and training has servers of {rollout}; write servers of that kind: {own}")
    if allocation.shared_device:
        yield Problem(KEY, "needs a GPU of its own, and the server and the trainer share the only one; leave it out")


def missing_evaluator_gpus(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> Iterator[Problem]:
    number, rollout = num_evaluators(config), allocation.rollout
    if not number or rollout is None or not allocation.num_gpus or servers_on_cpu(config):
        return
    more = number * rollout.tensor * rollout.pipeline
    there = gpus_per_node(config, host.machine) * config.cluster.n_nodes
    if allocation.num_gpus + more > there:
        reason = f"needs {plural(more, 'GPU')} beside the {allocation.num_gpus} of {allocation}, and there are {there}"
        yield Problem(KEY, f"{reason}; write smaller sizes in rollout.backend or actor.backend")
