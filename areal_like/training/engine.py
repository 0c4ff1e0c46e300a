"""A model over all trainer ranks: sharded by FSDP2, fed with packed micro-batches, stepped by its optimizer.

One rank or many, the code is the same. Losses come divided by counts of the whole batch already, and gradients are
added up over micro-batches and ranks, so that the cut changes nothing.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from areal_like.config.checks.user_code import is_built_in
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.process.errors import FinalFailure
from areal_like.process.seeds import derive_seed
from areal_like.training.attention import resolve_attention
from areal_like.training.full_tensor import full_tensor
from areal_like.training.loss_scale import make_scale
from areal_like.training.micro_batches import make_micro_batches
from areal_like.training.model import PackedModel, load_model
from areal_like.training.offload import HOST, step_from_host, to_host
from areal_like.training.optimizer_step import OptimizerStep, sum_of_squares
from areal_like.training.optimizers import embedding_parameters, make_optimizer
from areal_like.training.row_shards import local_tensor
from areal_like.training.schedules import make_schedule
from areal_like.training.sequences import MicroBatch, Sequences, dummy_micro_batch
from areal_like.training.sharding import forward_context, load_from_first_rank, named_tensors, shard
from areal_like.training.world import World
from areal_like.weights.persistent_buffers import persistent_buffers

if TYPE_CHECKING:
    from areal_like.training.lora import LoraAdapter

LossFunction = Callable[[MicroBatch, Tensor, Tensor | None], Tensor]
"""(micro-batch, log-probabilities, entropies) -> this micro-batch's part of the loss of the whole batch. A model with a
value head gives (micro-batch, values, None): at each prediction the value of what it was predicted from."""

log = logging.getLogger(__name__)


class TrainEngine:
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
        """`folder` has the model, with its tokenizer; `checkpoint` has later weights of it, to go on from. Those of an
        adapter come with the resume state alone."""
        self.config, self.where, self.folder, self.world = config, where, folder, world
        is_adapted = config.use_lora and config.optimizer is not None
        # What an adapter stands beside is what it was made beside: its checkpoints hold the base merged with it.
        begins_anew = checkpoint is None or is_adapted
        init_seed = derive_seed(seed, "init") if config.init_from_scratch and begins_anew else None
        source = folder if checkpoint is None or begins_anew else checkpoint
        attention = resolve_attention(config, where, world.device)

        def build(is_empty: bool) -> "tuple[PreTrainedModel, LoraAdapter | None]":
            with torch.device("meta") if is_empty else contextlib.nullcontext():
                model = load_model(config, where, source, init_seed, attention, is_empty)
                if not is_adapted:
                    return model, None
                from areal_like.training import lora  # peft takes seconds

                return model, lora.add_adapter(model, config, where, derive_seed(seed, "lora"))

        is_sent = config.fsdp.load_using_meta
        loaded = named_tensors(PackedModel(build(is_empty=False)[0])) if is_sent and world.is_first else None
        self.model, self.adapter = build(is_empty=is_sent)
        self.vocabulary = self.model.config.get_text_config().vocab_size
        self.consecutive_skips = 0
        self.schedule_start = 0
        self.module = shard(PackedModel(self.model), self.model, config, where, world)
        if is_sent:
            load_from_first_rank(self.module, loaded, world, HOST if config.fsdp.offload_params else world.device)
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if config.optimizer is None:
            self.module.requires_grad_(False)
            return
        self.optimizer = make_optimizer(self.parameters, config.optimizer, embedding_parameters(self.model))
        self.scale = make_scale(config.optimizer, config.dtype, config.grad_reduce_dtype)
        self.forward_context = forward_context(config)
        self.set_schedule(1)

    def set_schedule(self, total_steps: int) -> None:
        """As soon as it is known how many steps there are."""
        assert self.config.optimizer is not None, "a frozen model has no schedule"
        self.schedule = make_schedule(self.config.optimizer, total_steps)

    def cut(
        self,
        sequences: Sequences,
        rows: Sequence[int] | NDArray[np.int64],
        units: NDArray[np.int64] | None = None,
    ) -> list[MicroBatch]:
        """Micro-batches of these rows, as this model's own section says: see `micro_batches.cut`."""
        return make_micro_batches(sequences, rows, self.config, self.where, self.world.device, units)

    def logprobs(self, micros: Sequence[MicroBatch], temperature: float) -> list[Tensor]:
        """Of every prediction that counts, without a gradient. All ranks must call it."""
        assert not self.module.predicts_values, "a value model predicts no tokens"
        return self._evaluate(micros, temperature)

    def values(self, micros: Sequence[MicroBatch]) -> list[Tensor]:
        """For every prediction that counts the value of what it is predicted from, without a gradient. All ranks must
        call it."""
        assert self.module.predicts_values, "only a model with is_critic has values"
        return self._evaluate(micros, 1.0)

    def _evaluate(self, micros: Sequence[MicroBatch], temperature: float) -> list[Tensor]:
        self.module.eval()
        found = []
        with torch.no_grad():
            for micro in self._pad_with_dummies(micros):
                found.append(self.module(micro, temperature, False)[0])
        return found[: len(micros)]

    def accumulate(
        self, micros: Sequence[MicroBatch], loss: LossFunction, temperature: float = 1.0, with_entropy: bool = False
    ) -> float:
        """Adds the gradient of `loss` up over the micro-batches. Returns this rank's part of the loss."""
        assert self.config.optimizer is not None, "a frozen model has no gradient"
        if self.config.optimizer.offload:
            to_host(self.optimizer)
        self.module.train()
        total, alike = 0.0, self._pad_with_dummies(micros)
        for number, micro in enumerate(alike):
            _fsdp(self.module).set_requires_gradient_sync(number == len(alike) - 1)
            with self.forward_context:
                found, entropy = self.module(micro, temperature, with_entropy)
            if number < len(micros):
                part = loss(micro, found, entropy)
                total += part.item()
            else:
                part = found.sum() * 0.0
            torch.autograd.backward(part * self.scale.value)
        return total

    def step(self, completed: int, loss: float) -> OptimizerStep:
        """One update by the gradient that was accumulated; `loss` is this rank's part. What is not finite changes
        nothing, is counted, and fails the run when it goes on."""
        assert self.config.optimizer is not None, "a frozen model makes no steps"
        config, scale = self.config.optimizer, self.scale.value
        gradients = [self._gradient(parameter) for parameter in self.parameters]
        squares = sum_of_squares(gradients) / self.config.fsdp.dp_replicate
        loss, squares = self.world.sum([loss, squares])
        norm = math.sqrt(squares) / scale if squares >= 0 else math.nan
        lr = self.schedule(completed - self.schedule_start)
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        is_overflow = not is_finite and math.isfinite(loss) and self.scale.can_decrease
        if is_finite:
            most = config.gradient_clipping
            if (factor := min(1.0, most / norm if most and norm else 1.0) / scale) != 1.0:
                torch._foreach_mul_(gradients, factor)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            step_from_host(self.optimizer) if config.offload else self.optimizer.step()
            self.scale.good()
        else:
            self.scale.overflow()
        self.optimizer.zero_grad(set_to_none=True)
        if not is_overflow:
            self._count_skipped(is_finite, loss, norm)
        return OptimizerStep(loss, norm, lr, not is_finite, is_overflow, scale)

    def _gradient(self, parameter: nn.Parameter) -> Tensor:
        """This rank's part; a parameter that nothing used gets zeros, so that the optimizer treats it like the rest."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return local_tensor(parameter.grad)

    def _count_skipped(self, is_finite: bool, loss: float, norm: float) -> None:
        self.consecutive_skips = 0 if is_finite else self.consecutive_skips + 1
        if not is_finite:
            log.warning("%s: an update is left out: its loss is %s and its gradient norm %s", self.where, loss, norm)
        assert self.config.optimizer is not None
        if self.consecutive_skips >= self.config.optimizer.max_skipped_in_a_row:
            key, hint = f"{self.where}.optimizer.lr", "lower the learning rate, or go back to an older checkpoint"
            if isinstance(self.config, PPOActorConfig) and not is_built_in(self.config.loss):
                key = f"{self.where}.loss, {key}"
                hint = f"look for what is not finite in {self.config.loss}, which is your own, or {hint}"
            raise FinalFailure(
                f"{key}: {self.consecutive_skips} updates in a row had a loss or gradient that is "
                f"not finite, so the run has broken down; {hint}"
            )

    def _pad_with_dummies(self, micros: Sequence[MicroBatch]) -> list[MicroBatch]:
        """As many micro-batches on every rank: sharded layers are gathered by all ranks together."""
        most = int(self.world.max([len(micros)])[0])
        return [*micros, *[dummy_micro_batch(self.world.device)] * (most - len(micros))]

    def export_weights(self, adapter_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Names as the model in memory has them, in its own order, each tied weight once, in the precision the model
        computes in, then its buffers as they are; an adapter is merged. Or the adapter alone, as peft names it. All
        ranks must go through it to the end; each gets whole tensors, one at a time."""
        dtype = getattr(torch, self.config.dtype)
        if self.adapter is not None:
            found = self.adapter.tensors() if adapter_only else self.adapter.merged()
        else:
            assert not adapter_only, "there is no adapter"
            found = ((name, full_tensor(parameter.detach())) for name, parameter in self.model.named_parameters())
        for name, tensor in found:
            yield name, tensor.to(dtype)
        if not adapter_only:
            yield from self.buffers()

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """What `export_weights` gives beside parameters."""
        return persistent_buffers(self.model) if self.adapter is None else self.adapter.base_buffers()

    @property
    def num_weights(self) -> int:
        """How many numbers `export_weights` gives."""
        own = self.model.parameters() if self.adapter is None else self.adapter.base_parameters()
        buffers = (buffer for _, buffer in self.buffers())
        return sum(tensor.numel() for tensor in (*own, *buffers))

    @contextlib.contextmanager
    def adapter_disabled(self) -> Iterator[None]:
        """The model that the adapter was put into, such as the reference is. For evaluation alone."""
        assert self.adapter is not None, "there is no adapter to switch off"
        with self.adapter.off():
            yield

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Dropout inside draws from this seed: what a step draws depends on the step alone, not on what ran before."""
        devices = [self.world.device] if self.world.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield


def _fsdp(module: nn.Module) -> FSDPModule:
    assert isinstance(module, FSDPModule)
    return module
