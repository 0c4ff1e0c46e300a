"""Trainer ranks of one machine listen on loopback only."""

import json
import os
from pathlib import Path

from areal_like.training.world import World
from tests.support.listening_sockets import listening, open_to_others
from tests.support.rank_processes import finish, start


def list_sockets(world: World, folder: str) -> None:
    """While all ranks are connected."""
    world.sum([1.0])
    actual = listening([os.getpid()])
    Path(folder, f"{world.rank}.json").write_text(json.dumps([sorted(actual[os.getpid()]), open_to_others(actual)]))
    world.barrier()


def test_ranks_listen_on_loopback_alone(tmp_path, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    finish(start("tests.training.test_world:list_sockets", {2: [str(tmp_path)]}))
    for rank in range(2):
        addresses, reachable = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(addresses) >= 1 and reachable == [], addresses
