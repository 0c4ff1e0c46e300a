"""A whole step of reinforcement learning without servers: log-probabilities, advantages, policy loss with entropy,
update; as the plan of this machine sets the trainer up."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from areal_like.config.load import load
from areal_like.process.run import Run, StartPoint, open_run
from areal_like.training.actor import Actor
from areal_like.training.fake_data import FakeController
from areal_like.training.main import load_trained_engine
from areal_like.training.reference import NoReference
from areal_like.training.torch_compile import fall_back_later
from launcher.plan.build import build_plan
from launcher.runs.run_files import write_description, write_start_point
from tests.gpu.flops import peak_flops, training_flops
from tests.gpu.machine import ROOT
from tests.gpu.models import QWEN3_0_6B, TINY, write_model
from tests.gpu.report import Aim, CannotRun, Report
from tests.gpu.synchronizations import Synchronizations
from tests.gpu.timing import measured
from tests.support.training_runs import train_step, world

COUNT, LENGTH, SMALL_COUNT, SMALL_LENGTH = 8, 2049, 8, 17
SYNCHRONIZATIONS = Aim(most=1)
CHOSEN = (
    *("attn_impl", "compile", "dtype", "gradient_checkpointing", "master_dtype", "grad_reduce_dtype"),
    *("mb_spec.max_tokens_per_mb", "optimizer.type", "optimizer.lr"),
)
"""Keys of the actor that say how fast a step is."""


def rl_step(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        shape = TINY if report.small else QWEN3_0_6B
        count, length = (SMALL_COUNT, SMALL_LENGTH) if report.small else (COUNT, LENGTH)
        run = planned_run(
            Path(name),
            f"actor.path={write_model(Path(name) / 'model', shape)}",
            *("actor.dtype=bfloat16", "actor.entropy_coef=0.001", "gconfig.n_samples=4"),
            *(f"train_dataset.fake.batch_size={count}", f"train_dataset.fake.seq_len={length}"),
            *("valid_dataset=null", "evaluator.freq_steps=null", "total_train_steps=100"),
            *report.words,
        )
        config = run.config.actor
        report.fact("actor", {key: _value(config, key) for key in CHOSEN})
        fall_back_later(run.config)
        engine = load_trained_engine(run, config, "actor", world())
        engine.set_schedule(100)
        actor = Actor(engine, NoReference(), config, run.config.seed)
        controller = FakeController(run.config, engine)
        batches = iter(range(1_000_000))
        metrics: dict[str, float] = {}

        def step() -> None:
            metrics.update(train_step(actor, controller.batch(next(batches))))

        result = measured(step)
        with Synchronizations() as waits:
            step()
    tokens = count * (length - 1)
    report.limit("updates skipped", metrics["train/skipped_updates"], Aim(most=0))
    report.limit("entropy", metrics["train/entropy"], Aim(least=0))
    report.figure("a step", 1000 * result.seconds, "ms")
    report.figure("tokens", tokens / result.seconds, "/s")
    if torch.cuda.is_available() and (peak := peak_flops(torch.cuda.get_device_name())):
        flops = training_flops(shape, [length - 1] * count, tokens)
        report.figure("share of the peak", 100 * flops / result.seconds / peak, "%")
    report.figure("synchronizations in a step", waits.total, "", SYNCHRONIZATIONS, note=_listed(waits.counts))
    if result.peak_gb is not None:
        report.figure("memory above weights and optimizer", result.peak_gb, "GB")


def planned_run(root: Path, *words: str) -> Run:
    """A run directory as the launcher writes it for this machine; nothing is started."""
    own = ("trial_name=t", f"cluster.fileroot={root}/runs", f"cluster.name_resolve.nfs_record_root={root}/names")
    loaded = load(ROOT / "experiments" / "grpo.yaml", [*own, *words])
    plan = build_plan(loaded)
    if problems := [*plan.cannot_start, *plan.needs]:
        raise CannotRun("; ".join(str(problem) for problem in problems))
    directory = Path(plan.run_dir)
    directory.mkdir(parents=True)
    write_description(loaded, plan, f"gpu{os.getpid()}", ROOT, root, 1)
    write_start_point(directory, StartPoint(1, 0, None))
    return open_run(directory)


def _value(section: Any, key: str) -> Any:
    for name in key.split("."):
        section = getattr(section, name, None)
    return section if isinstance(section, str | int | float | bool | None) else str(section)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name.removeprefix('aten::')} {count}" for name, count in sorted(counts.items()) if count)
