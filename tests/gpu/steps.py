"""Whole training steps: packing, forward, backward, clipping, AdamW. Tokens per second, share of the peak, memory."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Qwen3Config

from areal_like.config.sections.train_engine import CompileConfig
from areal_like.training.engine import TrainEngine
from areal_like.training.sequences import Sequences
from areal_like.training.torch_compile import has_compiler
from tests.gpu.flops import peak_flops, training_flops
from tests.gpu.models import LAYERS_7B, QWEN3_0_6B, TINY, engine_of, learn, sequences_of
from tests.gpu.report import Aim, CannotRun, Report, size_of
from tests.gpu.timing import measured, wait
from tests.support.training_runs import section

SMALL_BY = 256
"""Lengths are divided by it at small sizes."""
PUBLISHED: dict[str, Any] = {"who": "prime-rl on one H100, a step of 16k tokens", "tokens_per_s": 11_900, "mfu": 0.111}


class Load(NamedTuple):
    """The sequences of a step, and what a tuned trainer reaches with them on one H100: tokens per second, and percent
    of the peak."""

    lengths: Sequence[int]
    tokens_per_s: Aim | None = None
    mfu: Aim | None = None
    how: str = ""


SHORT = Load([2048] * 8, Aim(68_000, 80_000), Aim(29, 34))
LONG = Load([16384], Aim(40_000, 45_000), Aim(37, 41))
LAYERS = Load([2048] * 4, None, Aim(48, 55))


def steps(report: Report) -> None:
    report.fact("published", PUBLISHED)
    with trainer(report, QWEN3_0_6B, gradient_checkpointing=False) as engine:
        for load in (SHORT, LONG):
            measure(report, engine, load)


def layers_7b(report: Report) -> None:
    with trainer(report, LAYERS_7B, gradient_checkpointing=False) as engine:
        measure(report, engine, LAYERS)


def recomputation(report: Report) -> None:
    """Both ways, after it is shown that the key makes a difference."""
    kept, recomputed = (saved_bytes(is_on) for is_on in (False, True))
    report.limit("bytes saved for the backward pass, recomputed / kept", recomputed / kept, Aim(most=0.5))
    for is_on, name in ((False, "kept"), (True, "recomputed")):
        with trainer(report, QWEN3_0_6B, f", {name}", gradient_checkpointing=is_on) as engine:
            for load in (SHORT, LONG):
                measure(report, engine, load._replace(how=f", {name}", tokens_per_s=None, mfu=None))


@contextmanager
def trainer(report: Report, shape: Qwen3Config, how: str = "", **settings: Any) -> Iterator[TrainEngine]:
    """An engine with the settings of a fast step: bfloat16, compiled layers."""
    if not report.small or torch.cuda.is_available():
        settings["compile"] = section(CompileConfig)
        if not torch.cuda.is_available() and not has_compiler():
            raise CannotRun("torch.compile needs a C++ compiler on a CPU")
    settings |= {"dtype": "bfloat16", "lr": 1e-6, "gradient_clipping": 1.0}
    began, note = time.perf_counter(), "with the rehearsal of compiled layers" if "compile" in settings else ""
    with engine_of(TINY if report.small else shape, **settings) as engine:
        wait()
        report.figure(f"start of the engine{how}", time.perf_counter() - began, "s", note=note)
        yield engine


def measure(report: Report, engine: TrainEngine, load: Load) -> None:
    """Where memory runs out, half of the sequences (or of a sequence) are tried, and so on: the figure says so."""
    lengths, note = list(load.lengths), ""
    if report.small:
        lengths = [max(2, length // SMALL_BY) for length in lengths]
    name = size_of(lengths) + load.how
    shape: Any = engine.model.config
    while True:
        sequences = sequences_of(lengths, shape.vocab_size)
        skipped: list[bool] = []

        def step(sequences: Sequences = sequences, skipped: list[bool] = skipped) -> None:
            skipped.append(engine.step(len(skipped), learn(engine, sequences)).is_skipped)

        try:
            result = measured(step)
            break
        except torch.cuda.OutOfMemoryError:
            engine.optimizer.zero_grad()
            lengths = lengths[: len(lengths) // 2] if len(lengths) > 1 else [lengths[0] // 2]
            note = f"out of memory with more than {len(lengths)} x {lengths[0]} tokens"
            if sum(lengths) < 512:
                raise
    tokens = sum(lengths)
    flops = training_flops(shape, lengths, int(sequences.loss_tokens_N.sum()))
    peak = peak_flops(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    report.limit(f"{name}: updates skipped", sum(skipped), Aim(most=0))
    report.figure(f"{name}: tokens", tokens / result.seconds, "/s", load.tokens_per_s, note)
    if peak is None:
        report.missing(f"{name}: share of the peak", "the peak of this device is not known")
    else:
        report.figure(f"{name}: share of the peak", 100 * flops / result.seconds / peak, "%", load.mfu, note)
    report.figure(f"{name}: floating-point operations", flops / result.seconds / 1e12, "TFLOP/s")
    report.figure(f"{name}: a step", 1000 * result.seconds, "ms")
    report.figure(
        f"{name}: the first step", result.first_s, "s", note="with the compilation of the head's kernels on a GPU"
    )
    if result.peak_gb is not None:
        report.figure(f"{name}: memory above weights and optimizer", result.peak_gb, "GB")


def saved_bytes(recomputes: bool) -> int:
    """What a tiny model keeps in memory between forward and backward pass."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with engine_of(TINY, dtype="bfloat16", gradient_checkpointing=recomputes) as engine:
        parameters = {parameter.data_ptr() for parameter in engine.model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            learn(engine, sequences_of([64] * 4, TINY.vocab_size, first_in_loss=0.9))
    return sum(size for place, size in seen.items() if place not in parameters)
