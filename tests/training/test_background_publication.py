"""Weights in files are copied, and hashed and written beside the next step."""

import errno
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from areal_like.process.errors import FinalFailure, TimedOut
from areal_like.process.identity import SERVER
from areal_like.process.ownership import Ownership
from areal_like.process.patience import answer_limit
from areal_like.process.run import Run
from areal_like.training import background_publication
from areal_like.training.background_publication import BackgroundPublication
from areal_like.training.controller_client import TrainerControllerClient
from areal_like.training.rank_vote import RankVote
from areal_like.training.transports import disk as disk_transport
from areal_like.training.transports import kept_versions
from areal_like.training.transports.disk import DiskTransport
from areal_like.training.weight_publisher import WeightPublisher
from areal_like.weights import device_copies, disk, flat_buckets
from areal_like.weights.device_checksum import checksums
from areal_like.weights.disk import load_version, publish_weights, remove_versions
from areal_like.weights.errors import BadWeights
from areal_like.weights.index import Index, read_index, write_index
from areal_like.weights.probe import Probe
from tests.support.rollout_world import grpo
from tests.support.stand_in_gpu import StandInGpu
from tests.support.training_controller import FakeController
from tests.support.training_runs import make_run, model_folder, start_from
from tests.support.weights_group import ROOT, model
from tests.training.test_loop import SECRET, SETTINGS, serve, train_in

pytestmark = pytest.mark.timeout(300)

PROBE = Probe([1, 2], [-0.5])
LIMIT_S = 60.0


def transport(
    tmp_path: Path, memory: Path | None = None, device: str = "cpu", require: Callable[[], None] = lambda: None
) -> DiskTransport:
    """Writes into a folder on disk; with `memory`, into that if it is shared memory."""
    engine = SimpleNamespace(
        config=SimpleNamespace(dtype="float32"),
        num_weights=10,
        buffers=lambda: [],
        world=SimpleNamespace(device=torch.device(device)),
    )
    run = SimpleNamespace(
        config=grpo(), run_id="run-1", memory=memory or tmp_path / "none" / "m", weights=tmp_path / "weights"
    )
    return DiskTransport(run, engine, require)  # type: ignore[arg-type]


class SlowDisk:
    """Writes wait until `go_on` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        write = flat_buckets.write_bucket

        def write_slowly(*given: Any) -> None:
            self.begun.set()
            assert self.go_on.wait(LIMIT_S)
            write(*given)

        monkeypatch.setattr(disk, "write_bucket", write_slowly)


def tell(told: list[Any], complete: Callable[[], dict[str, Any]]) -> Callable[[], None]:
    def complete_and_tell() -> None:
        told.append(complete())

    return complete_and_tell


def publish(transport: DiskTransport, background: BackgroundPublication, version: int, told: list[Any]) -> None:
    background.wait()
    complete = transport.publish(version, model(version).items(), PROBE)
    background.start(version, tell(told, complete))


def test_publishing_waits_for_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, told = SlowDisk(monkeypatch), list[dict[str, Any]]()
    files, background = transport(tmp_path), BackgroundPublication(LIMIT_S)
    tensors = model(1)
    assert files.completes_in_background and "written during the next step" in files.reason
    complete = files.publish(1, tensors.items(), PROBE)
    background.start(1, tell(told, complete))
    assert slow.begun.wait(LIMIT_S)
    for tensor in tensors.values():  # the next step
        tensor.zero_()
    background.check()
    assert not told and not list(files.root.glob("v*")), "nobody may know a version before its files are complete"
    slow.go_on.set()
    background.wait()
    (publication,) = told
    expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    loaded = load_version(Path(publication["folder"]), expected, newer_than=0, run_id="run-1")
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in model(1).items())


def test_versions_are_complete_one_after_another_in_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    plain = device_copies.host_memory

    def counted(size: int, is_pinned: bool) -> Tensor:
        made.append(size)
        return plain(size, is_pinned)

    monkeypatch.setattr(device_copies, "host_memory", counted)
    files, background, told = transport(tmp_path), BackgroundPublication(LIMIT_S), list[dict[str, Any]]()
    for version in range(1, 6):
        publish(files, background, version, told)
    background.wait()
    assert [publication["version"] for publication in told] == [1, 2, 3, 4, 5]
    assert len(made) == len(read_index(Path(told[-1]["folder"])).buckets)
    assert sorted(folder.name for folder in files.root.iterdir()) == ["v000003", "v000004", "v000005"]


def test_files_are_the_same_whether_written_at_once_or_later(tmp_path: Path) -> None:
    files = transport(tmp_path)
    complete = files.publish(3, model(3).items(), PROBE)
    later = Path(complete()["folder"])
    at_once = publish_weights(tmp_path / "at_once", 3, model(3).items(), PROBE, "run-1")
    assert {file.name: file.read_bytes() for file in later.iterdir()} == {
        file.name: file.read_bytes() for file in at_once.iterdir()
    }


def test_from_a_cpu_into_shared_memory_weights_are_written_at_once(tmp_path: Path) -> None:
    """There is nothing to gain: the file is the copy."""
    memory = tmp_path / "memory" / "run"
    memory.parent.mkdir()
    assert not transport(tmp_path, memory).completes_in_background
    assert transport(tmp_path, memory, "cuda").completes_in_background


@pytest.mark.parametrize("at", ["check", "wait", "start"])
def test_a_full_disk_ends_the_run_with_the_folder_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "write_bucket", full)
    files, background, told = transport(tmp_path), BackgroundPublication(LIMIT_S), list[dict[str, Any]]()
    publish(files, background, 7, told)
    with pytest.raises(OSError, match=r"version 7 of the weights cannot be written: No space left .*weights/v000007"):
        if at == "start":
            background.start(8, lambda: None)
        while at == "check":
            background.check()
        background.wait()
    assert not told and not list(files.root.iterdir())


@pytest.mark.parametrize("moment", ["before it is written", "while it is written", "before others are removed"])
def test_a_publication_of_a_run_that_another_launcher_took_over_changes_none_of_its_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run = Run(tmp_path, None, "grpo", "run-1", tmp_path, tmp_path)
    start_from(run, None, 0)
    files = transport(tmp_path, require=Ownership.of_process(run).require)
    for version in (4, 5):
        files.publish(version, model(version).items(), PROBE)()
    complete = files.publish(6, model(6).items(), PROBE)
    found: list[set[str]] = []

    def take_over() -> None:
        found.append({path.name for path in files.root.glob("v*")} | successor(run))

    def write_and_take_over(write: Callable[..., Any]) -> Callable[..., Any]:
        def both(*given: Any) -> Any:
            written = write(*given)
            take_over()
            return written

        return both

    if moment == "before it is written":
        take_over()
    elif moment == "while it is written":
        monkeypatch.setattr(disk, "write_index", write_and_take_over(write_index))
    else:
        monkeypatch.setattr(disk_transport, "write_weights", write_and_take_over(disk.write_weights))
    with pytest.raises(FinalFailure, match="another launcher has begun attempt 2 of this run; attempt 1 writes"):
        complete()
    assert [{path.name for path in files.root.iterdir()}] == found


def successor(run: Run) -> set[str]:
    """Another launcher takes the run over; the versions of its trainer."""
    start_from(run, None, 0, attempt=2)
    made = {"v000001", "v000002", ".v000003.1.new"}
    for name in made:
        (run.weights / name).mkdir(exist_ok=True)
    return made


def test_half_a_version_that_the_trainer_of_another_launcher_removed_is_no_full_disk(tmp_path: Path) -> None:
    run = Run(tmp_path, None, "grpo", "run-1", tmp_path, tmp_path)
    start_from(run, None, 0)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield from model(6).items()
        start_from(run, None, 0, attempt=2)
        shutil.rmtree(tmp_path / "weights")

    with pytest.raises(FinalFailure, match="another launcher has begun attempt 2"):
        publish_weights(tmp_path / "weights", 6, tensors(), PROBE, "run-1", 200, Ownership.of_process(run).require)
    assert not (tmp_path / "weights").exists()


def test_a_rank_that_waits_for_a_batch_hears_of_a_failed_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    client = object.__new__(TrainerControllerClient)
    client._batch_limit, client._rank, client._world_size = answer_limit(grpo(), SERVER), 0, 1
    asked: list[str] = []

    def not_yet(path: str, body: Any) -> Any:
        asked.append(path)
        return {"wait": True, "results": 0, "limit": [1.0, "agent.timeout_s"]}, []

    monkeypatch.setattr(client, "_frame", not_yet)

    def check() -> None:
        if len(asked) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", "v000007")

    with pytest.raises(OSError, match="v000007"):
        client.batch(7, check)


def test_a_publication_that_hangs_ends_by_its_named_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_publication, "CHECK_INTERVAL_S", 0.05)
    background, ends = BackgroundPublication(0.1), threading.Event()

    def hang() -> None:
        ends.wait(LIMIT_S)

    background.start(3, hang)
    with pytest.raises(TimedOut, match=r"^rollout\.request_timeout: .* weights v3 to be published"):
        background.wait()
    ends.set()


def test_ranks_wait_on_the_cpu_while_the_first_one_still_writes() -> None:
    """In a collective on GPUs the watchdog would end them."""
    go_on, votes = threading.Event(), list[int]()

    def vote(number: int, what: str) -> int:
        votes.append(number)
        if len(votes) == 3:
            go_on.set()
            publisher._background.wait()
        return number

    def in_a_collective(*given: Any, **options: Any) -> None:
        assert votes == [1, 1, 1, 0]
        raise StopIteration

    publisher: Any = object.__new__(WeightPublisher)
    publisher._limit_s, publisher._tokens, publisher._background = LIMIT_S, [1, 2], BackgroundPublication(LIMIT_S)
    world: Any = SimpleNamespace(rank=0, size=1, store=None)
    ranks: Any = RankVote(world, 0.6, "actor.dist_timeout_s")
    ranks.size, ranks.sum, publisher._ranks = 2, vote, ranks
    publisher._engine = SimpleNamespace(
        world=SimpleNamespace(device=torch.device("cpu")),
        logprobs=in_a_collective,
    )
    publisher._background.start(1, go_on.wait)
    with pytest.raises(StopIteration):
        publisher.publish(2)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (None, r"actor\.optimizer\.lr: .* v2: it diverged"),
        (2, r"actor\.path, actor\.dtype, actor\.attn_impl: .* v2, before"),
    ],
)
def test_a_model_that_diverged_ends_the_run_before_it_is_published(base: int | None, words: str) -> None:
    """JSON has no numbers that are not finite: servers would find a damaged index. Another attempt would repeat it."""
    publisher: Any = object.__new__(WeightPublisher)
    publisher._background, publisher._ranks = BackgroundPublication(LIMIT_S), SimpleNamespace(size=1)
    publisher._tokens, publisher._transport, publisher._base = [1, 2], SimpleNamespace(takes_adapter=True), base
    publisher._engine = SimpleNamespace(
        world=SimpleNamespace(device=torch.device("cpu"), is_first=True),
        logprobs=lambda *_, **__: [torch.tensor([math.nan])],
        export_weights=lambda **_: iter(()),
    )
    with pytest.raises(FinalFailure, match=f"^{words}"):
        publisher.publish(2)


KILLED = """
import sys, threading
from pathlib import Path
from areal_like.weights import disk
from areal_like.weights.flat_buckets import copy_weights
from tests.support.weights_group import model
count, write = 0, disk.write_bucket
def some(*given):
    global count
    count += 1
    if count == 3:
        print("half", flush=True)
        threading.Event().wait()
    write(*given)
disk.write_bucket = some
copy = copy_weights(model(4).items(), None, 4000)
disk.write_weights(Path(sys.argv[1]), copy.hashed(4, None, "run-1"))
"""


def test_a_trainer_killed_while_it_writes_leaves_no_version(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".v000004.") and list(left.iterdir())
    with pytest.raises(BadWeights, match="not a complete publication"):
        read_index(left)
    remove_versions(tmp_path, keep={4})
    assert not list(tmp_path.iterdir())


def test_a_gpu_is_waited_for_once_per_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are asynchronous, into pinned memory that is kept, and the checksums of all tensors come at once."""
    gpu, weights, index = StandInGpu(monkeypatch), None, list[Index]()
    for version in (1, 2):
        gpu.clear()
        with gpu.reads():
            copy = flat_buckets.copy_weights(gpu.put(model(version)).items(), weights, 4000)
            assert gpu.waits == Counter() and gpu.num_read_backs == 1
            weights = copy.hashed(version, None, "run-1")
        index.append(weights.index)
        assert gpu.waits == Counter(event=1)
    num_bytes = sum(tensor.nbytes for tensor in model(2).values())
    assert gpu.to_host == num_bytes + 8 * len(model(2)) and not gpu.on_gpu
    assert gpu.pinned and all(gpu.pinned) and len(gpu.pinned) == len(index[0].buckets) + 2
    published = {info.name: info.checksum for info in index[1].tensors}
    assert published == checksums(model(2).items()), "without them a server on a GPU reads the weights back"


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("AREAL_LIKE_TOKEN", SECRET)
    return make_run(tmp_path / "run", "grpo", *SETTINGS, f"actor.path={model_folder(tmp_path, 'qwen3')}")


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_versions, "publication_root", lambda run, *_: (run.weights, "no shared memory"))


def trained(run: Run, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None] | None = None) -> FakeController:
    """Three steps, each with answers of the version before."""
    if write is not None:
        monkeypatch.setattr(disk, "write_bucket", write)
    with serve(run, total_steps=3, lag=1) as controller:
        controller.lag = 1
        controllers.append(controller)
        assert train_in(run) == 0
    return controller


controllers: list[FakeController] = []


def wait_for_last(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set once training has ended but for the last publication."""
    waits_for_last, plain_wait = threading.Event(), BackgroundPublication.wait

    def waiting(self: BackgroundPublication) -> None:
        if self._version == 3:
            waits_for_last.set()
        plain_wait(self)

    monkeypatch.setattr(BackgroundPublication, "wait", waiting)
    return waits_for_last


def test_the_next_step_begins_while_weights_are_written(tmp_path, trainer: Run, monkeypatch) -> None:
    at_once, plain = trained(trainer, monkeypatch), flat_buckets.write_bucket
    monkeypatch.setattr(kept_versions, "publication_root", lambda run, *_: (run.weights, "no shared memory"))
    waits_for_last = wait_for_last(monkeypatch)

    def write_late(folder: Path, *given: Any) -> None:
        ends = time.monotonic() + LIMIT_S
        assert "v000003" not in folder.name or waits_for_last.wait(LIMIT_S), "the end waits for no write"
        while "v000001" in folder.name and {"step": 1} not in steps_asked_for(controllers[-1]):
            assert time.monotonic() < ends, "the next step waits for the write"
            time.sleep(0.01)
        plain(folder, *given)

    again = make_run(tmp_path / "again", "grpo", *SETTINGS, f"actor.path={trainer.config.actor.path}")
    later = trained(again, monkeypatch, write_late)
    assert later.published.keys() == at_once.published.keys() == {0, 1, 2, 3}
    for version, weights in at_once.published.items():
        assert later.published[version].hashes == weights.hashes
    called = [(path, body.get("version", body.get("step"))) for path, body in later.calls]
    assert called.index(("/batch", 1)) < called.index(("/publish", 1))
    assert called.index(("/publish", 3)) < called.index(("/finished", 3)), "the last version is needed by evaluations"


def steps_asked_for(controller: FakeController) -> list[dict[str, int]]:
    return [{"step": body["step"]} for body in controller.requests_to("/batch")]


def test_a_write_that_fails_ends_training_with_its_reason(trainer: Run, on_disk: None, monkeypatch) -> None:
    plain = flat_buckets.write_bucket

    def full(folder: Path, *given: Any) -> None:
        if "v000002" in folder.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(folder, *given)

    with pytest.raises(OSError, match=r"version 2 of the weights cannot be written: No space left .*weights/v000002"):
        trained(trainer, monkeypatch, full)
    assert [body["version"] for body in controllers[-1].requests_to("/publish")] == [0, 1]
    assert not controllers[-1].requests_to("/finished")


def test_a_trainer_whose_run_was_taken_over_while_it_wrote_leaves_the_versions_of_the_other_one(
    trainer: Run, on_disk: None, monkeypatch
) -> None:
    plain, waits_for_last = flat_buckets.write_bucket, wait_for_last(monkeypatch)

    def write_and_stall(folder: Path, *given: Any) -> None:
        plain(folder, *given)
        if "v000003" in folder.name:
            assert waits_for_last.wait(LIMIT_S)
            successor(trainer)

    with pytest.raises(FinalFailure, match="another launcher has begun attempt 2 of this run; attempt 1 writes"):
        trained(trainer, monkeypatch, write_and_stall)
    found = {path.name for path in trainer.weights.iterdir()}
    assert found == {"v000000", "v000001", "v000002", ".v000003.1.new"}
    assert [body["version"] for body in controllers[-1].requests_to("/publish")] == [0, 1, 2]
