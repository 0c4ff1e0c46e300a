"""TrainEngine: a model sharded over the trainer ranks by FSDP2, with packed micro-batches and an optimizer.

The code is the same for one rank or many. Losses are already divided by counts of the whole batch, and gradients are
summed over micro-batches and ranks, so that the split does not affect the result.
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
from transformers import PreTrainedModel

from areal_like.config.checks.user_code import is_built_in
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.process import pulse
from areal_like.process.errors import FinalFailure
from areal_like.process.seeds import derive_seed
from areal_like.training.attention import resolve_attention
from areal_like.training.device_sums import DeviceSums
from areal_like.training.full_tensor import full_tensor
from areal_like.training.gradient_reduction import reduce_gradients, resolve_reduction
from areal_like.training.host_copies import HOST, HostCopies
from areal_like.training.loss_scale import make_scale
from areal_like.training.micro_batches import make_micro_batches
from areal_like.training.model import PackedModel, load_model
from areal_like.training.offload import step_from_host, to_host
from areal_like.training.optimizer_step import OptimizerStep, sum_of_squares
from areal_like.training.optimizers import embedding_parameters, make_optimizer
from areal_like.training.row_shards import local_tensor
from areal_like.training.schedules import make_schedule
from areal_like.training.sequences import MicroBatch, Sequences, dummy_micro_batch
from areal_like.training.sharding import forward_context, load_from_first_rank, named_tensors, shard
from areal_like.training.torch_compile import CompiledLayers, backward_in_this_thread
from areal_like.training.world import World
from areal_like.weights.persistent_buffers import persistent_buffers

if TYPE_CHECKING:
    from areal_like.training.lora import LoraAdapter

LossFunction = Callable[[MicroBatch, Tensor, Tensor | None], Tensor]
"""(micro-batch, log-probabilities, entropies) -> this micro-batch's part of the loss of the whole batch. For a model
with a value head (micro-batch, values, None): at each prediction the value of the state before it."""

COMPILING_PASSES = 8
"""Of each model: evaluations and updates have graphs of their own, and lengths that vary another."""

log = logging.getLogger(__name__)


class TrainEngine:
    """`section` is the key of `config`, for messages."""

    def __init__(
        self,
        config: TrainEngineConfig,
        section: str,
        folder: Path,
        world: World,
        seed: int,
        checkpoint: Path | None = None,
    ) -> None:
        """`folder` contains the model and its tokenizer; `checkpoint` later weights to resume from. Those of an adapter
        are in the resume state only."""
        self.config, self.section, self.folder, self.world = config, section, folder, world
        is_adapted = config.use_lora and config.optimizer is not None
        # An adapter resumes on its original base: checkpoints hold the base with the adapter merged.
        loads_original = checkpoint is None or is_adapted
        init_seed = derive_seed(seed, "init") if config.init_from_scratch and loads_original else None
        source = folder if checkpoint is None or loads_original else checkpoint
        attention = resolve_attention(config, section, world.device, source)

        def build(is_empty: bool) -> "tuple[PreTrainedModel, LoraAdapter | None]":
            with torch.device("meta") if is_empty else contextlib.nullcontext():
                model = load_model(config, section, source, init_seed, attention, is_empty)
                if not is_adapted:
                    return model, None
                from areal_like.training import lora  # importing peft takes seconds

                return model, lora.add_adapter(model, config, section, derive_seed(seed, "lora"))

        uses_meta = config.fsdp.load_using_meta
        loaded = named_tensors(PackedModel(build(is_empty=False)[0])) if uses_meta and world.is_first else None
        self.model, self.adapter = build(is_empty=uses_meta)
        self.vocab_size = self.model.config.get_text_config().vocab_size
        self.consecutive_skips = 0
        self.schedule_start = 0
        packed = PackedModel(self.model)
        if config.optimizer is None:
            packed.requires_grad_(False)  # also in the rehearsal of compiled layers
        self.module = shard(packed, self.model, config, section, world)
        self.compiled = None if config.compile is None else CompiledLayers(self.model, section)
        self._passes = contextlib.nullcontext if self.compiled is None else self.compiled.watched
        self._num_passes = 0
        if uses_meta:
            with contextlib.nullcontext() if world.is_first else pulse.phase(pulse.COLLECTIVE):
                load_from_first_rank(self.module, loaded, world, HOST if config.fsdp.offload_params else world.device)
            if world.is_first:  # the others have waited for it: as many collectives are behind it now
                with pulse.phase(pulse.COLLECTIVE):
                    pass
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if config.optimizer is None:
            return
        self.optimizer = make_optimizer(self.parameters, config.optimizer, embedding_parameters(self.model))
        self.state_on_host = HostCopies(keeps=world.device != HOST)
        self.scale = make_scale(config.optimizer, config.dtype, config.grad_reduce_dtype)
        self.forward_context = forward_context(config)
        self.reduction = resolve_reduction(config, section, world)
        self.set_schedule(1)

    def set_schedule(self, total_steps: int) -> None:
        """Called as soon as the number of steps is known."""
        assert self.config.optimizer is not None, "a frozen model has no schedule"
        self.schedule = make_schedule(self.config.optimizer, total_steps)

    def micro_batches(
        self,
        sequences: Sequences,
        rows: Sequence[int] | NDArray[np.int64],
        units: NDArray[np.int64] | None = None,
    ) -> list[MicroBatch]:
        """Micro-batches of these rows by this model's `mb_spec`: see `micro_batches.make_micro_batches`."""
        return make_micro_batches(sequences, rows, self.config, self.section, self.world.device, units)

    def logprobs(self, micros: Sequence[MicroBatch], temperature: float) -> list[Tensor]:
        """Of every target token, without gradient. All ranks must call it."""
        assert not self.module.predicts_values, "a value model has no log-probabilities"
        return self._evaluate(micros, temperature)

    def values(self, micros: Sequence[MicroBatch]) -> list[Tensor]:
        """The value of the state before every target token, without gradient. All ranks must call it."""
        assert self.module.predicts_values, "only a model with is_critic has values"
        return self._evaluate(micros, 1.0)

    def _evaluate(self, micros: Sequence[MicroBatch], temperature: float) -> list[Tensor]:
        self.module.eval()
        outputs = []
        with torch.no_grad(), self._passes(), self._pulse():
            for micro in self._pad_with_dummies(micros):
                pulse.advance()
                outputs.append(self.module(micro, temperature, False)[0])
        return outputs[: len(micros)]

    def accumulate(
        self, micros: Sequence[MicroBatch], loss: LossFunction, temperature: float = 1.0, with_entropy: bool = False
    ) -> Tensor:
        """Accumulates the gradient of `loss` over the micro-batches. Returns this rank's part of the loss, in double
        precision and still on the device: nothing here waits for it."""
        assert self.config.optimizer is not None, "a frozen model has no gradient"
        if self.config.optimizer.offload:
            to_host(self.optimizer, self.state_on_host)
        self.module.train()
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        padded = self._pad_with_dummies(micros)
        with self._passes(), self._pulse(), backward_in_this_thread():
            for index, micro in enumerate(padded):
                pulse.advance()
                reduce_gradients(self.module, self.reduction, is_last=index == len(padded) - 1)
                with self.forward_context:
                    output, entropy = self.module(micro, temperature, with_entropy)
                if index < len(micros):
                    part = loss(micro, output, entropy)
                    total += part.detach()
                    pulse.advance()  # a rank that waits in `backward` is ahead of one whose loss does not end
                else:
                    part = output.sum() * 0.0
                torch.autograd.backward(part * self.scale.value)
        return total

    def _pulse(self) -> contextlib.AbstractContextManager[object]:
        """The first passes of compiled layers compile."""
        self._num_passes += 1
        compiles = self.compiled is not None and self._num_passes <= COMPILING_PASSES
        return pulse.phase(pulse.COMPILING if compiles else pulse.STEP)

    def step(self, completed: int, local_loss: Tensor, sums: DeviceSums | None = None) -> OptimizerStep:
        """One optimizer step with the accumulated gradient; `local_loss` is this rank's part. A loss or gradient that
        is not finite skips the step, is counted, and fails the run when it repeats. Loss and norm, which decide that,
        and `sums` are read from the device together: the only time that an update waits for it."""
        assert self.config.optimizer is not None, "a frozen model makes no steps"
        config, scale = self.config.optimizer, self.scale.value
        gradients = [self._gradient(parameter) for parameter in self.parameters]
        squares = sum_of_squares(gradients) / self.config.fsdp.dp_replicate
        both = self.world.sum_tensor(torch.stack([local_loss, squares.to(local_loss.device)]))
        loss, squared_norm = (sums or DeviceSums()).read_with(both)
        norm = math.sqrt(squared_norm) / scale if squared_norm >= 0 else math.nan
        lr = self.schedule(completed - self.schedule_start)
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        is_overflow = not is_finite and math.isfinite(loss) and self.scale.can_decrease
        if is_finite:
            limit = config.gradient_clipping
            if (factor := min(1.0, limit / norm if limit and norm else 1.0) / scale) != 1.0:
                torch._foreach_mul_(gradients, factor)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            step_from_host(self.optimizer, self.state_on_host) if config.offload else self.optimizer.step()
            self.scale.good()
        else:
            self.scale.overflow()
        self.optimizer.zero_grad(set_to_none=True)
        if not is_overflow:
            self._count_skipped(is_finite, loss, norm)
        num_compiled = None if self.compiled is None else self.compiled.num
        return OptimizerStep(loss, norm, lr, not is_finite, is_overflow, scale, num_compiled)

    def _gradient(self, parameter: nn.Parameter) -> Tensor:
        """This rank's part; zeros for a parameter that was not used, so that the optimizer treats all alike."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return local_tensor(parameter.grad)

    def _count_skipped(self, is_finite: bool, loss: float, norm: float) -> None:
        self.consecutive_skips = 0 if is_finite else self.consecutive_skips + 1
        if not is_finite:
            log.warning("%s: update skipped: its loss is %s and its gradient norm %s", self.section, loss, norm)
        assert self.config.optimizer is not None
        if self.consecutive_skips >= self.config.optimizer.max_skipped_in_a_row:
            key, hint = f"{self.section}.optimizer.lr", "lower the learning rate, or resume from an older checkpoint"
            if isinstance(self.config, PPOActorConfig) and not is_built_in(self.config.loss):
                key = f"{self.section}.loss, {key}"
                hint = f"check {self.config.loss}, your own loss, for values that are not finite, or {hint}"
            raise FinalFailure(
                f"{key}: {self.consecutive_skips} updates in a row had a loss or gradient that is not finite; {hint}"
            )

    def _pad_with_dummies(self, micros: Sequence[MicroBatch]) -> list[MicroBatch]:
        """The same number of micro-batches on every rank: FSDP gathers layers collectively."""
        count = int(self.world.max([len(micros)])[0])
        return [*micros, *[dummy_micro_batch(self.world.device)] * (count - len(micros))]

    def export_weights(self, adapter_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Names as in the model in memory, in its order, each tied weight once, in the precision of computation, then
        its buffers as they are; an adapter is merged. Or the adapter alone, with peft's names. All ranks must iterate
        to the end; each gets full tensors, one at a time."""
        dtype = getattr(torch, self.config.dtype)
        if self.adapter is not None:
            tensors = self.adapter.tensors() if adapter_only else self.adapter.merged()
        else:
            assert not adapter_only, "there is no adapter"
            tensors = ((name, full_tensor(parameter.detach())) for name, parameter in self.model.named_parameters())
        for name, tensor in tensors:
            yield name, tensor.to(dtype)
        if not adapter_only:
            yield from self.buffers()

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The buffers in `export_weights`."""
        return persistent_buffers(self.model) if self.adapter is None else self.adapter.base_buffers()

    @property
    def num_weights(self) -> int:
        """How many numbers `export_weights` yields."""
        parameters = self.model.parameters() if self.adapter is None else self.adapter.base_parameters()
        buffers = (buffer for _, buffer in self.buffers())
        return sum(tensor.numel() for tensor in (*parameters, *buffers))

    @contextlib.contextmanager
    def adapter_disabled(self) -> Iterator[None]:
        """The model without the adapter, as reference model. For evaluation only."""
        assert self.adapter is not None, "there is no adapter to switch off"
        with self.adapter.disabled():
            yield

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Dropout inside draws from this seed: a step depends on the step number only, not on what ran before."""
        devices = [self.world.device] if self.world.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield
