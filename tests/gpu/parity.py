"""Log-probabilities and gradients of packed sequences against transformers in float64, one sequence at a time."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from areal_like.config.sections.train_engine import CompileConfig
from areal_like.training.engine import TrainEngine
from areal_like.training.full_tensor import full_tensor
from areal_like.training.sequences import Sequences
from areal_like.training.torch_compile import has_compiler
from tests.gpu.models import TINY, engine_of, learn, reference, sequences_of, write_model
from tests.gpu.report import Aim, CannotRun, Report
from tests.support.training_runs import section

LENGTHS = [700, 33, 512, 33, 128, 257, 64, 900]
OTHER_LENGTHS = [411, 5, 5, 77, 1023]
"""A second micro-batch, of which compiled layers must not need a new graph."""
SMALL_LENGTHS, SMALL_OTHERS = [17, 5, 32, 5, 9], [6, 21, 21]
LOGPROBS = {"float32": Aim(most=2e-4), "bfloat16": Aim(most=0.05)}
"""Greatest error of a log-probability in float32; in bfloat16, where single tokens are off by more, the mean."""
GRADIENTS = {"float32": Aim(most=1e-3), "bfloat16": Aim(most=0.1)}
"""Greatest error of a parameter's gradient, relative to its norm."""
GRAPHS = Aim(most=0)
"""Of layers, after their rehearsal."""


Batch = tuple[Sequences, Tensor, dict[str, Tensor]]
"""Sequences, the right log-probabilities, the right gradients."""


def parity(report: Report) -> None:
    with tiny_model() as folder:
        right = batches(folder, report.small)
        for dtype in LOGPROBS:
            compare(report, dtype, folder, right, dtype)


def compiled(report: Report) -> None:
    """Compiled layers give the same, and other lengths need no other graph."""
    if not torch.cuda.is_available() and not has_compiler():
        raise CannotRun("torch.compile needs a C++ compiler on a CPU")
    with tiny_model() as folder:
        right = batches(folder, report.small)
        for dtype in LOGPROBS:
            torch.compiler.reset()
            with engine_of(TINY, folder, dtype=dtype) as engine:  # compiles the kernels of the head
                logprobs_of(engine, right[0][0])
                learn(engine, right[0][0])
            counters.clear()
            rehearsed = compare(report, f"{dtype}, compiled", folder, right, dtype, compile=section(CompileConfig))
            report.figure(f"{dtype}, compiled: graphs of the rehearsal", rehearsed)
            more = counters["stats"]["unique_graphs"] - rehearsed
            report.limit(f"{dtype}, compiled: graphs after it", more, GRAPHS)


@contextmanager
def tiny_model() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        yield write_model(Path(name), TINY, torch.float32)


def batches(folder: Path, small: bool) -> list[Batch]:
    made = (
        sequences_of(lengths, TINY.vocab_size, first_in_loss=0.5)
        for lengths in ((SMALL_LENGTHS, SMALL_OTHERS) if small else (LENGTHS, OTHER_LENGTHS))
    )
    return [(sequences, *reference(folder, sequences, torch.float64)) for sequences in made]


def compare(
    report: Report,
    name: str,
    folder: Path,
    right: list[Batch],
    dtype: str,
    **settings: Any,
) -> int:
    """The worst of all batches. Returns how many graphs there were once the engine was made."""
    offs, gaps = [], []
    with engine_of(TINY, folder, dtype=dtype, **settings) as engine:
        num_graphs = int(counters["stats"]["unique_graphs"])
        for sequences, expected, gradients in right:
            offs.append((logprobs_of(engine, sequences) - expected).abs())
            learn(engine, sequences)
            gaps += [((_gradient(engine, name) - one).norm() / one.norm()).item() for name, one in gradients.items()]
            engine.optimizer.zero_grad()
    off = torch.cat(offs)
    is_exact = dtype == "float32"
    report.limit(
        f"{name}: log-probabilities off by, {'at most' if is_exact else 'mean'}",
        off.max().item() if is_exact else off.mean().item(),
        LOGPROBS[dtype],
        note=f"at most {off.max().item():.2g}, mean {off.mean().item():.2g}",
    )
    report.limit(f"{name}: a gradient off by, of its norm", max(gaps), GRADIENTS[dtype])
    return num_graphs


def logprobs_of(engine: TrainEngine, sequences: Sequences) -> Tensor:
    """Log-probabilities of the tokens in the loss, in the order of the sequences."""
    micros = engine.micro_batches(sequences, range(len(sequences)))
    logprobs = sequences.scatter(micros, engine.logprobs(micros, 1.0))
    return torch.from_numpy(logprobs[sequences.target_mask])


def _gradient(engine: TrainEngine, name: str) -> Tensor:
    gradient = engine.model.get_parameter(name).grad
    assert gradient is not None
    return full_tensor(gradient).double().cpu()
