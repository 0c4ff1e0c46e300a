"""Copies in host memory: kept over checkpoints and steps, complete when they are read, unchanged by training."""

import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.process.checkpoint_files import folder_name
from areal_like.training import checkpoint as checkpoint_module
from areal_like.training import engine as engine_module
from areal_like.training import offload
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.checkpoint_content import CheckpointPurpose
from areal_like.training.engine_snapshot import EngineSnapshot
from areal_like.training.host_copies import HOST, HostCopies, page_locked
from areal_like.training.optimizers import make_optimizer
from areal_like.training.progress import TrainingProgress
from tests.support.training_runs import ME, make_engine, make_run, model_folder, section, weights_of, world
from tests.training.test_checkpoint import learn, slow


class CountedMemory(HostCopies):
    """As on a GPU: copies are kept, and complete only after a wait."""

    def __init__(self, keeps: bool = True) -> None:
        super().__init__(True, self._allocated, self._waited)
        self.allocations = self.waits = 0

    def _allocated(self, tensor: Tensor) -> Tensor:
        self.allocations += 1
        return torch.full_like(tensor, 7, memory_format=torch.contiguous_format)

    def _waited(self) -> None:
        self.waits += 1


def test_checkpoints_use_the_memory_of_the_first_and_wait_once(tmp_path, monkeypatch):
    """The next update changes the weights while a checkpoint is being written."""
    memories: list[CountedMemory] = []

    def made(keeps: bool) -> CountedMemory:
        assert not keeps, "on a CPU nothing is kept"
        memories.append(CountedMemory())
        return memories[-1]

    monkeypatch.setattr(checkpoint_module, "HostCopies", made)
    run = make_run(tmp_path / "run", "sft", f"model.path={model_folder(tmp_path, 'llama')}", "recover.keep=5")
    engine, go_on = make_engine(Path(run.config.model.path)), threading.Event()
    monkeypatch.setattr(EngineSnapshot, "write_folder", slow(EngineSnapshot.write_folder, go_on))
    checkpoints, progress = CheckpointManager(run, world(), 100), TrainingProgress(run, ME, world())
    expected, counts = {}, []
    for step in (1, 2, 3):
        learn(engine, step)
        expected[step] = weights_of(engine)
        go_on.clear()
        checkpoints.write(step, CheckpointPurpose(True, True), {"actor": engine}, progress)
        learn(engine, step + 10)
        go_on.set()
        checkpoints.wait()
        counts.append((memories[0].allocations, memories[0].waits))
    (allocations, _) = counts[0]
    assert len(memories) == 1 and counts == [(allocations, number) for number in (1, 2, 3)] and allocations > 50
    for step, weights in expected.items():
        loaded = weights_of(make_engine(engine.folder, run.checkpoints / folder_name(step)))
        assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded.items())


def test_offloaded_state_has_the_same_host_memory_in_every_step(monkeypatch):
    monkeypatch.setattr(offload, "is_on_device", lambda tensor: True)
    weights, memory = [nn.Parameter(torch.ones(8, 4)) for _ in range(3)], CountedMemory()
    plain = [nn.Parameter(torch.ones(8, 4)) for _ in range(3)]
    optimizers = [make_optimizer(each, section(OptimizerConfig)) for each in (weights, plain)]
    homes = []
    for step in range(4):
        for weight in (*weights, *plain):
            weight.grad = torch.full((8, 4), float(step))
        offload.step_from_host(optimizers[0], memory, at_once=1)
        optimizers[1].step()
        homes.append([optimizers[0].state[weight]["exp_avg"].data_ptr() for weight in weights])
    assert homes[1:] == homes[:1] * 3 and (memory.allocations, memory.waits) == (6, 4)
    for weight, other in zip(weights, plain, strict=True):
        assert torch.equal(weight, other)
        state = optimizers[1].state[other]
        assert all(torch.equal(value, state[kind]) for kind, value in optimizers[0].state[weight].items())


def test_a_copy_that_is_not_kept_is_new_memory():
    memory, tensor = HostCopies(keeps=False), torch.rand(4, 3).t()
    one, other = memory.copy("a", tensor), memory.copy("a", tensor)
    assert torch.equal(one, tensor) and one.is_contiguous()
    assert len({each.data_ptr() for each in (tensor, one, other)}) == 3


def test_a_copy_to_kept_memory_does_not_wait_for_the_gpu():
    class Copies(TorchDispatchMode):
        are_asynchronous: ClassVar[list[bool]] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.copy_.default:
                self.are_asynchronous.append(args[2])
            return func(*args, **(kwargs or {}))

    memory, tensor = CountedMemory(), torch.rand(4, 3)
    with Copies() as copies:
        copy = memory.copy("a", tensor)
    assert copies.are_asynchronous == [True] and torch.equal(copy, tensor) and memory.waits == 0


def test_engines_and_checkpoints_keep_the_copies_of_a_gpu_alone(tmp_path, monkeypatch):
    """Here a device without data stands for it."""
    kept: list[bool] = []
    for module in (engine_module, checkpoint_module):
        monkeypatch.setattr(module, "HostCopies", lambda keeps: kept.append(keeps))
    run = make_run(tmp_path / "run", "sft", f"model.path={model_folder(tmp_path, 'llama')}")
    for device in (HOST, torch.device("meta")):
        monkeypatch.setattr(world(), "device", device)
        make_engine(Path(run.config.model.path))
        CheckpointManager(run, world(), 100)._memory_of("model")
    assert kept == [False, False, True, True]


def test_memory_that_cannot_be_locked_is_used_unlocked(monkeypatch, caplog):
    """As is asked for that of a sharded tensor, here one without data."""
    asked: list[bool] = []
    empty_like = torch.empty_like

    def without_locks(tensor: Tensor, *, pin_memory: bool = False, **how: Any) -> Tensor:
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty_like(tensor, **how)

    monkeypatch.setattr(torch, "empty_like", without_locks)
    sharded = DTensor.from_local(torch.ones(3, 2, device="meta"), world().mesh, run_check=False)
    copy = page_locked(sharded)
    assert asked == [True, False] and isinstance(copy, DTensor) and copy.to_local().device == HOST
    assert "24 bytes of host memory could not be page-locked" in caplog.text


@pytest.mark.parametrize("changed", [torch.zeros(5), torch.zeros(4, dtype=torch.bfloat16)])
def test_a_tensor_of_another_form_gets_other_memory(changed):
    memory = CountedMemory()
    memory.copy("a", torch.zeros(4))
    assert memory.copy("a", changed).dtype == changed.dtype and memory.allocations == 2
