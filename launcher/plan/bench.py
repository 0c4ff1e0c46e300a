"""`bench=true`: a few steps, without evaluation, checkpoints or remote tracking."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.problems import Problem
from areal_like.config.sections.trackers import TRACKERS, is_enabled
from areal_like.observe.throughput import WARM_UP_STEPS
from launcher.plan.plan import Resolved, RunDirectory

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

BENCH_STEPS = WARM_UP_STEPS + 4
FREQUENCY_KEYS = ("freq_epochs", "freq_steps", "freq_secs")


def bench_values(config: "BaseExperimentConfig") -> Iterator[Resolved]:
    """Keys that a benchmark overrides."""
    if not config.bench:
        return
    yield Resolved("total_train_steps", BENCH_STEPS, f"bench: {WARM_UP_STEPS} to warm up, and 4 that are measured")
    if config.total_train_n_seqs is not None:
        yield Resolved("total_train_n_seqs", None, "bench: the steps decide")
    if config.total_train_epochs < BENCH_STEPS:
        yield Resolved("total_train_epochs", BENCH_STEPS, "bench: the steps decide, even with few rows")
    if config.valid_dataset is not None:
        yield Resolved("valid_dataset", None, "bench: nothing is evaluated")
    if config.evaluator.benchmarks:
        yield Resolved("evaluator.benchmarks", [], "bench: nothing is evaluated")
    for name in ("evaluator", "saver", "recover"):
        section = getattr(config, name)
        for clock in FREQUENCY_KEYS:
            if getattr(section, clock) is not None:
                yield Resolved(f"{name}.{clock}", None, "bench: only steps are measured")
    for name, kind in TRACKERS.items():
        if kind.is_remote and is_enabled(name, config.stats_logger):
            yield Resolved(f"stats_logger.{name}.mode", "disabled", "bench: metrics of a benchmark stay local")
    if config.recover.mode != "disabled":
        yield Resolved("recover.mode", "disabled", "bench: no checkpoint is written")


def ignored_by_bench(loaded: "Loaded") -> Iterator[Problem]:
    """Overrides that a benchmark ignores; the same keys in a file are meant for training."""
    for key in ("total_train_steps", "total_train_n_seqs", "total_train_epochs"):
        if loaded.config.bench and loaded.get(key) is not None and loaded.origin(key).kind == "override":
            yield Problem(key, f"has no effect: bench=true measures {BENCH_STEPS} steps")


def bench_problems(config: "BaseExperimentConfig", directory: RunDirectory) -> Iterator[Problem]:
    if config.bench and (config.resume is not None or directory.state == "continues"):
        key = "trial_name" if config.resume is None else "resume"
        yield Problem(key, "a benchmark is always a new run and resumes none; leave it out")
