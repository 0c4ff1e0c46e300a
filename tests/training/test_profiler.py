"""Traces and memory snapshots of a trainer."""

import gzip
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from areal_like.training import main as trainer
from areal_like.training.profiler import TrainerProfiler
from areal_like.training.stop import StopRequest
from tests.support.planning import plan_of
from tests.support.training_runs import ME, make_run, start_from, world

SHORT = ("train_dataset.fake.batch_size=2", "train_dataset.fake.seq_len=8", "total_train_steps=3")


@pytest.mark.shows("profiler.trace_path")
@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_trace_path_holds_the_trace_of_all_steps(tmp_path, kind):
    run = make_run(tmp_path / "run", kind, *SHORT, "recover.mode=disabled", "profiler.trace_path=traces")
    work = trainer._reinforcement if kind == "grpo" else trainer._supervised
    assert work(run, ME, world(), StopRequest(world())) == 0
    with gzip.open(run.directory / "traces" / "trace_0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = {event.get("name", "") for event in events}
    assert {"after 0 steps", "after 1 steps", "after 2 steps"} <= names
    assert any("backward" in name.lower() for name in names), "of the computation itself"


def test_an_absolute_trace_path_is_kept_and_attempts_use_separate_files(tmp_path):
    run = make_run(tmp_path / "run", "sft", *SHORT, f"profiler.trace_path={tmp_path / 'elsewhere'}")
    for attempt in (1, 2):
        TrainerProfiler(start_from(run, None, 0, attempt), world()).close()
    actual = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    assert actual == {"trace_0.json.gz", "trace_0.attempt-2.json.gz"}


@pytest.mark.shows("profiler.memory_path")
def test_memory_path_holds_a_snapshot_of_every_step_and_rank(tmp_path, monkeypatch):
    """Seen where the value arrives at the library: there is no GPU whose memory could be looked at."""
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: calls.append(how))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", calls.append)
    run = make_run(tmp_path / "run", "sft", *SHORT, "profiler.memory_path=memory")
    gpu: Any = SimpleNamespace(rank=3, device=torch.device("cuda", 0))
    profile = TrainerProfiler(run, gpu)
    profile.step(1)
    profile.step(2)
    profile.close()
    memory = run.directory / "memory"
    assert calls[0]["max_entries"] > 0 and calls[-1] == {"enabled": None}
    assert calls[1:-1] == [str(memory / f"step_{step}" / "rank_3.pickle") for step in (1, 2)]
    assert (memory / "step_2").is_dir()


def test_without_settings_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: pytest.fail("recorded"))
    run = make_run(tmp_path / "run", "sft", *SHORT)
    gpu: Any = SimpleNamespace(rank=0, device=torch.device("cuda", 0))
    profile = TrainerProfiler(run, gpu)
    profile.step(1)
    profile.close()
    assert {path.name for path in run.directory.iterdir()} == {"config.yaml", "run.json", "attempt.json"}


@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_a_trace_of_too_many_or_unlimited_steps_is_refused(kind):
    for steps, limit in ((10, "10 steps"), ("null", "all epochs")):
        (obstacle,) = plan_of(kind, "profiler.trace_path=traces", f"total_train_steps={steps}").cannot_start
        assert obstacle.key == "profiler.trace_path"
        assert limit in obstacle.message and "total_train_steps below 10" in obstacle.message
    assert plan_of(kind, "profiler.trace_path=traces", "total_train_steps=9").cannot_start == ()
    assert plan_of(kind, "profiler.trace_path=traces", "bench=true").cannot_start == ()


@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_snapshots_of_a_gpu_are_refused_where_none_is_used(kind):
    (obstacle,) = plan_of(kind, "profiler.memory_path=memory").cannot_start
    assert obstacle.key == "profiler.memory_path" and "perf/memory_gb" in obstacle.message
    assert plan_of(kind, "profiler.memory_path=memory", gpus=2).cannot_start == ()
