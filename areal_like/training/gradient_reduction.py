"""When gradients are summed over the ranks: with every micro-batch, or with the last one of a step."""

import logging

from torch import nn
from torch.distributed.fsdp import FSDPModule

from areal_like.config.gradient_reduction import PER_MICRO_BATCH, choose_reduction
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.training.world import World

log = logging.getLogger(__name__)


def resolve_reduction(config: TrainEngineConfig, section: str, world: World) -> str:
    """The value of `fsdp.reduce_gradients`; logs what `auto` resolves to, and why."""
    num_shards = world.size // config.fsdp.dp_replicate
    value, reason = choose_reduction(config, num_shards, world.device.type != "cpu")
    if config.fsdp.reduce_gradients == "auto" and num_shards > 1:
        log.info("%s.fsdp.reduce_gradients is %s: %s", section, value, reason)
    return value


def reduce_gradients(module: nn.Module, reduction: str, is_last: bool) -> None:
    """For the next micro-batch, which is the last of its step or not. Sums over replicas are made with the last one in
    any case: until then each replica accumulates its shards in the precision of the sum."""
    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(is_last or reduction == PER_MICRO_BATCH)
    module.set_requires_all_reduce(is_last)
