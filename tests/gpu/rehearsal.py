"""How long an engine takes to start with compiled layers: the first time, and with what the compiler kept on disk."""

import time
from collections import Counter
from typing import Any

import torch
from torch._dynamo.utils import compile_times, counters

from areal_like.config.sections.train_engine import CompileConfig
from areal_like.training.torch_compile import has_compiler
from tests.gpu.models import QWEN3_0_6B, TINY, engine_of
from tests.gpu.report import Aim, CannotRun, Report
from tests.support.training_runs import section

START_S = Aim(most=30)
MOST_STAGES = 12


def rehearsal(report: Report) -> None:
    if not torch.cuda.is_available() and not has_compiler():
        raise CannotRun("torch.compile needs a C++ compiler on a CPU")
    shape = TINY if report.small else QWEN3_0_6B
    with engine_of(shape, dtype="bfloat16"):
        pass  # imports, and the first use of the device
    for name in ("the first time", "again"):
        torch.compiler.reset()
        counters.clear()
        before, began = stages(), time.perf_counter()
        with engine_of(shape, dtype="bfloat16", compile=section(CompileConfig)):
            report.figure(f"start of the engine, {name}", time.perf_counter() - began, "s", START_S)
        report.figure(f"graphs, {name}", counters["stats"]["unique_graphs"])
        spent = {stage: round(seconds, 1) for stage, seconds in (stages() - before).most_common(MOST_STAGES)}
        report.fact(f"seconds by stage, {name}", spent)


def stages() -> Counter[str]:
    """Seconds of the compiler's stages until now; some contain others."""
    table: Any = compile_times(repr="csv", aggregate=True)
    return Counter({stage: float(seconds) for stage, seconds in zip(*table, strict=True)})
