"""Publications go to shared memory if it is shared and large enough, and the reason is given."""

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.training.transports.kept_versions import KeptVersions
from areal_like.weights import publication_root
from tests.support.rollout_world import grpo

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def run(tmp_path) -> Any:
    (tmp_path / "shm").mkdir()
    return SimpleNamespace(memory=tmp_path / "shm" / "areal-like.0.r1", weights=tmp_path / "run" / "weights")


def free(monkeypatch, num_bytes: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, num_bytes))


def chosen(run: Any, num_bytes: int, spans_nodes: bool = False) -> tuple[Path, str]:
    return publication_root.publication_root(run, spans_nodes, num_bytes)


def test_memory_with_room_for_three_versions_is_used(run, monkeypatch) -> None:
    free(monkeypatch, 3_000_000_000)
    folder, reason = chosen(run, 1_000_000_000)
    assert folder == run.memory
    assert "has 3.0 GB free for 3.0 GB" in reason


def test_memory_that_is_too_small_is_not_used_with_the_reason(run, monkeypatch) -> None:
    free(monkeypatch, 64_000_000)
    folder, reason = chosen(run, 30_000_000)
    assert folder == run.weights
    assert reason.endswith("has 64 MB free, and 3 versions of the weights need 90 MB")


def test_several_nodes_share_no_memory(run, monkeypatch) -> None:
    free(monkeypatch, 10**12)
    folder, reason = chosen(run, 1, spans_nodes=True)
    assert folder == run.weights
    assert "several nodes" in reason


def test_a_machine_without_shared_memory_uses_the_run_directory(run) -> None:
    run.memory.parent.rmdir()
    folder, reason = chosen(run, 1)
    assert folder == run.weights
    assert reason == f"this machine has no {run.memory.parent}"


@pytest.mark.parametrize(
    ("words", "versions"),
    [
        ((), 3),
        (("evaluator.backend=auto",), 5),
        (("evaluator.backend=auto", "evaluator.benchmarks=[{name: a, path: addition}, {name: b, path: addition}]"), 7),
    ],
)
def test_memory_has_room_for_the_versions_that_evaluations_wait_for(run, monkeypatch, words, versions: int) -> None:
    run.config = grpo(*words)
    free(monkeypatch, versions * 100 - 1)
    assert f"and {versions} versions of the weights need" in KeptVersions(run, 100).reason
    free(monkeypatch, versions * 100)
    assert KeptVersions(run, 100).root == run.memory
