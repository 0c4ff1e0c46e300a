"""Trainer ranks of one machine listen on loopback only; what they reduce with."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from areal_like.process.errors import Failure
from areal_like.training import world
from areal_like.training.world import World
from tests.support.listening_sockets import listening, open_to_others
from tests.support.rank_processes import finish, start


def list_sockets(ranks: World, folder: str) -> None:
    """While all ranks are connected."""
    ranks.sum([1.0])
    actual = listening([os.getpid()])
    Path(folder, f"{ranks.rank}.json").write_text(json.dumps([sorted(actual[os.getpid()]), open_to_others(actual)]))
    ranks.barrier()


def test_ranks_listen_on_loopback_alone(tmp_path, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    finish(start("tests.training.test_world:list_sockets", {2: [str(tmp_path)]}))
    for rank in range(2):
        addresses, reachable = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(addresses) >= 1 and reachable == [], addresses


def test_ranks_with_gpus_can_also_reduce_in_host_memory(monkeypatch):
    asked: list[tuple[str, object]] = []
    gpu = torch.device("cuda", 1)
    for name, value in {"is_available": True, "device_count": 2, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: asked.append((backend, how["device_id"])))
    monkeypatch.setattr(world, "rendezvous_store", lambda *_: None)
    monkeypatch.setattr(world, "World", lambda *_: None)
    for name, number in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(number))
    world.open_world(60)
    assert asked == [("cpu:gloo,cuda:nccl", gpu)]


def test_a_plan_with_gpus_is_not_carried_out_on_a_cpu(monkeypatch):
    """Nor by two ranks on one GPU. Without a plan, as under torchrun alone, torch decides."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv(world.VISIBLE, "")
    world.require_gpus(0)
    world.require_gpus("auto")
    found = rf"^cluster\.n_gpus_per_node: .* need 1 GPU, and torch {re.escape(torch.__version__)} finds none in "
    for visible in ("", "3"):
        monkeypatch.setenv(world.VISIBLE, visible)
        with pytest.raises(Failure, match=f"{found}CUDA_VISIBLE_DEVICES={visible}; install a torch that is built for"):
            world.require_gpus(1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    world.require_gpus(1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(Failure, match=r"need 2 GPUs, and torch .* finds 1 in .*; check the driver \(nvidia-smi\)"):
        world.require_gpus(2)
