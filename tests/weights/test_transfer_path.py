"""The path of sent weights follows from the GPUs that trainer and servers report."""

from types import SimpleNamespace

import pytest
import torch

from areal_like.weights.gpu_ids import gpu_ids
from areal_like.weights.transfer_path import Receiver, choose_path

A, B, C = "GPU-a", "GPU-b", "GPU-c"

CASES = {
    "a CPU trainer": ([], [Receiver("server/0", 1, [])], "gloo", "the trainer has no GPU"),
    "a CPU server": ([A], [Receiver("server/0", 1, [])], "gloo", "server/0 receives into main memory"),
    "one of two workers unknown": ([A], [Receiver("server/0", 2, [B])], "gloo", "server/0 receives into main memory"),
    "a GPU each": ([A], [Receiver("server/0", 1, [B]), Receiver("server/1", 1, [C])], "nccl", "GPU of its own"),
    "a server of two": ([A], [Receiver("server/0", 2, [B, C])], "nccl", "GPU of its own"),
    "one GPU": ([A], [Receiver("server/0", 1, [A])], "ipc", "share a GPU"),
    "one GPU for three": ([A], [Receiver("server/0", 1, [A]), Receiver("server/1", 1, [A])], "ipc", "share a GPU"),
    "half shared": ([A], [Receiver("server/0", 1, [A]), Receiver("server/1", 1, [B])], "gloo", "share GPU GPU-a"),
    "two servers on one": ([A], [Receiver("server/0", 1, [B]), Receiver("server/1", 1, [B])], "gloo", "GPU GPU-b"),
    "one part of a GPU": (["MIG-1"], [Receiver("server/0", 1, ["MIG-1"])], "ipc", "share a GPU"),
    "two parts of a GPU": (["MIG-1"], [Receiver("server/0", 1, ["MIG-2"])], "gloo", "parts of GPUs"),
    "a path that failed": ([A], [Receiver("server/0", 1, [B], "a transfer by nccl failed")], "gloo", "nccl failed"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_path_and_its_reason_follow_from_the_gpus(case: str) -> None:
    trainer, receivers, backend, reason = CASES[case]
    path = choose_path(trainer, receivers)
    assert path.backend == backend and reason in path.reason


def test_a_part_of_a_gpu_is_known_by_its_own_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"GPU-{number}"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_ids(torch.device("cpu")) == []
    assert gpu_ids(torch.device("cuda", 0)) == ["GPU-0"] and gpu_ids(torch.device("cuda")) == ["GPU-1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1, MIG-2")
    assert gpu_ids(torch.device("cuda", 0)) == ["MIG-1"] and gpu_ids(torch.device("cuda")) == ["MIG-2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    assert gpu_ids(torch.device("cuda", 0)) == ["GPU-0"]
