"""A model over all trainer ranks: sharded by FSDP2, fed with packed micro-batches, stepped by its optimizer.

One rank or many, the code is the same. Losses come divided by counts of the whole batch already, and gradients are
added up over micro-batches and ranks, so that the cut changes nothing.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from areal_like.config.train_engine import TrainEngineConfig
from areal_like.process.errors import Failure
from areal_like.process.seeds import derive_seed
from areal_like.training.model import PackedModel, load_model
from areal_like.training.optimizers import make_optimizer
from areal_like.training.schedules import make_schedule
from areal_like.training.sequences import MicroBatch, one_token
from areal_like.training.sharding import shard
from areal_like.training.world import World

MOST_SKIPPED_IN_A_ROW = 5

Loss = Callable[[MicroBatch, Tensor, Tensor | None], Tensor]
"""(micro-batch, log-probabilities, entropies) -> this micro-batch's part of the loss of the whole batch."""

log = logging.getLogger(__name__)


class Update(NamedTuple):
    """What one optimizer step did. `loss` is that of the whole batch, `grad_norm` the norm before clipping."""

    loss: float
    grad_norm: float
    lr: float
    is_skipped: bool


class Engine:
    """`where` is the section of the configuration that `config` is: what messages begin with."""

    def __init__(
        self,
        config: TrainEngineConfig,
        where: str,
        folder: Path,
        world: World,
        seed: int,
        checkpoint: Path | None = None,
    ) -> None:
        """`folder` has the model, with its tokenizer; `checkpoint` has later weights of it, to go on from."""
        self.config, self.where, self.folder, self.world = config, where, folder, world
        from_scratch = config.init_from_scratch and checkpoint is None
        init_seed = derive_seed(seed, "init") if from_scratch else None
        self.causal = load_model(config, where, checkpoint or folder, init_seed)
        self.vocabulary = self.causal.config.get_text_config().vocab_size
        self.skipped_in_a_row = 0
        self.schedule_start = 0
        self.module = shard(PackedModel(self.causal).to(world.device), self.causal, config, where, world)
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if config.optimizer is None:
            self.module.requires_grad_(False)
            return
        self.optimizer = make_optimizer(self.parameters, config.optimizer)
        self.set_schedule(1)

    def set_schedule(self, total_steps: int) -> None:
        """As soon as it is known how many steps there are."""
        assert self.config.optimizer is not None, "a frozen model has no schedule"
        self.schedule = make_schedule(self.config.optimizer, total_steps)

    def logprobs(self, micros: Sequence[MicroBatch], temperature: float) -> list[Tensor]:
        """Of every prediction that counts, without a gradient. All ranks must call it."""
        self.module.eval()
        found = []
        with torch.no_grad():
            for micro in self._alike(micros):
                found.append(self.module(micro, temperature, False)[0])
        return found[: len(micros)]

    def accumulate(
        self, micros: Sequence[MicroBatch], loss: Loss, temperature: float = 1.0, with_entropy: bool = False
    ) -> float:
        """Adds the gradient of `loss` up over the micro-batches. Returns this rank's part of the loss."""
        self.module.train()
        total, alike = 0.0, self._alike(micros)
        for number, micro in enumerate(alike):
            _fsdp(self.module).set_requires_gradient_sync(number == len(alike) - 1)
            logprobs, entropy = self.module(micro, temperature, with_entropy)
            if number < len(micros):
                part = loss(micro, logprobs, entropy)
                total += part.item()
            else:
                part = logprobs.sum() * 0.0
            torch.autograd.backward(part)
        return total

    def step(self, completed: int, loss: float) -> Update:
        """One update by the gradient that was accumulated; `loss` is this rank's part. What is not finite changes
        nothing, is counted, and fails the run when it goes on."""
        assert self.config.optimizer is not None, "a frozen model makes no steps"
        gradients = [self._gradient(parameter) for parameter in self.parameters]
        squares = sum(gradient.double().square().sum().item() for gradient in gradients)
        loss, squares = self.world.sum([loss, squares])
        norm, lr = math.sqrt(squares) if squares >= 0 else math.nan, self.schedule(completed - self.schedule_start)
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if is_finite:
            most = self.config.optimizer.gradient_clipping
            if most and norm > most:
                torch._foreach_mul_(gradients, most / norm)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._count_skipped(is_finite, loss, norm)
        return Update(loss, norm, lr, not is_finite)

    def _gradient(self, parameter: nn.Parameter) -> Tensor:
        """This rank's part; a parameter that nothing used gets zeros, so that the optimizer treats it like the rest."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad
        return gradient.to_local() if isinstance(gradient, DTensor) else gradient

    def _count_skipped(self, is_finite: bool, loss: float, norm: float) -> None:
        self.skipped_in_a_row = 0 if is_finite else self.skipped_in_a_row + 1
        if not is_finite:
            log.warning("%s: an update is left out: its loss is %s and its gradient norm %s", self.where, loss, norm)
        if self.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
            raise Failure(
                f"{self.where}.optimizer.lr: {MOST_SKIPPED_IN_A_ROW} updates in a row had a loss or gradient that is "
                "not finite, so the run has broken down; lower the learning rate, or go back to an older checkpoint"
            )

    def _alike(self, micros: Sequence[MicroBatch]) -> list[MicroBatch]:
        """As many micro-batches on every rank: sharded layers are gathered by all ranks together."""
        most = int(self.world.max([len(micros)])[0])
        return [*micros, *[one_token(self.world.device)] * (most - len(micros))]

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Names as transformers has them, in the model's own order, each tied weight once, in the precision the model
        computes in. All ranks must go through it to the end; each gets whole tensors."""
        dtype = getattr(torch, self.config.dtype)
        for name, parameter in self.causal.named_parameters():
            yield name, whole(parameter.detach()).to(dtype)

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Dropout inside draws from this seed: what a step draws depends on the step alone, not on what ran before."""
        devices = [self.world.device] if self.world.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor put together on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _fsdp(module: nn.Module) -> FSDPModule:
    assert isinstance(module, FSDPModule)
    return module
