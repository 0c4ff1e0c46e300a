"""Checks of `evaluator.backend`: servers for evaluations alone, beside those of training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.base import BackendSpec
from areal_like.config.allocation.compatibility import impossible_sizes, unsupported
from areal_like.config.allocation.evaluators import evaluators_on_cpu
from areal_like.config.allocation.models import generates, gpus_per_node, starts_servers
from areal_like.config.problems import Problem, plural
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "evaluator.backend"


def evaluator_problems(config: "BaseExperimentConfig", allocation: Allocation) -> Iterator[Problem]:
    if not generates(config) or config.evaluator.backend is None:
        return
    if not starts_servers(config):
        yield Problem(KEY, "adds servers to those that a run starts, and rollout.server_addresses names others")
    if (own := allocation.evaluators) is None:
        return
    impossible = list(impossible_sizes(BackendSpec(own.backend, own), own.backend, KEY))
    yield from impossible or unsupported(own, KEY)
    if allocation.shared_device and not evaluators_on_cpu(config, own):
        yield Problem(KEY, "needs a GPU of its own, and the server and the trainer share the only one; leave it out")


def missing_evaluator_gpus(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> Iterator[Problem]:
    own = allocation.evaluators
    if own is None or not allocation.num_gpus or evaluators_on_cpu(config, own):
        return
    there = gpus_per_node(config, host.machine) * config.cluster.n_nodes
    if allocation.num_gpus + own.world_size > there:
        beside = f"beside the {allocation.num_gpus} of {allocation}, and there are {there}"
        reason = f"needs {plural(own.world_size, 'GPU')} {beside}"
        yield Problem(KEY, f"{reason}; write smaller sizes here, in rollout.backend or in actor.backend")
