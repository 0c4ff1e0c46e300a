"""Members of a weights broadcast group: `python tests/support/weights_group.py receive|send|stick ...` runs one in a
separate process, which a test can kill."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from areal_like.weights.collective import BroadcastGroup, BroadcastHost  # noqa: E402
from areal_like.weights.errors import GroupBroken  # noqa: E402
from areal_like.weights.flat_buckets import FlatWeights, flatten  # noqa: E402
from areal_like.weights.rendezvous import Rendezvous  # noqa: E402

LIMIT_S = 600.0


def model(version: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    tensors = {"model.embed_tokens.weight": torch.randn(64, 32, generator=generator)}
    for layer in range(3):
        tensors[f"model.layers.{layer}.mlp.up_proj.weight"] = torch.randn(48, 32, generator=generator).bfloat16()
        tensors[f"model.layers.{layer}.counts"] = torch.arange(3) + version
    tensors["model.turned"] = torch.randn(4, 5, generator=generator).t()
    tensors["model.nothing"] = torch.empty(0, 4)
    return tensors


def flat(version: int = 3, buffer: FlatWeights | None = None) -> FlatWeights:
    return flatten(version, model(version).items(), None, "run-1", buffer, max_bucket_bytes=4000)


def rendezvous(host: BroadcastHost, world: int, group: str = "g", timeout_s: float = LIMIT_S) -> Rendezvous:
    return Rendezvous(host.host, host.port, group, "gloo", 1, world, timeout_s)


def join_group(at: Rendezvous, rank: int) -> BroadcastGroup:
    """Joins as a server process; returns when all members have joined."""
    group = BroadcastGroup(at, rank)
    try:
        return group.join()
    except GroupBroken as broken:
        group.leave(broken)
        raise


def send(host: BroadcastHost, at: Rendezvous, contents: Iterable[torch.Tensor]) -> None:
    with host.open(at) as group:
        group.join()
        for content in contents:
            group.send(content)


class BackgroundCall:
    """Work in a thread; `result` is its result or exception."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._main, args=(work,))
        self._thread.start()

    def _main(self, work: Callable[[], Any]) -> None:
        try:
            self.result = work()
        except Exception as fault:
            self.result = fault

    def wait(self, limit_s: float = 60.0) -> Any:
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), "it hangs"
        return self.result


class Process:
    """A member that runs until it is killed, started before it joins the others."""

    def __init__(self, what: str, world: int, port: int = 0, rank: int = 0) -> None:
        words = [sys.executable, __file__, what, str(port), str(rank), str(world)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        ready, _, actual_port = self.process.stdout.readline().strip().partition(" ")
        assert ready == "ready", self.last_output()
        self.port = int(actual_port or port)

    def until_met(self) -> None:
        """Waits until a sender has met the receivers."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "met\n", self.last_output()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def last_output(self, limit_s: float = 60.0) -> str:
        """Error output of a member that ends by itself."""
        return self.process.communicate(timeout=limit_s)[1]


def _receive_for_ever(port: int, rank: int, world: int) -> None:
    print("ready", flush=True)
    buffer = torch.empty(1_000_000, dtype=torch.uint8)
    with join_group(Rendezvous("127.0.0.1", port, "g", "gloo", 1, world, LIMIT_S), rank) as group:
        while True:
            group.receive(buffer)


def _send_for_ever(world: int, is_stuck: bool) -> None:
    host = BroadcastHost("127.0.0.1", 0)
    print("ready", host.port, flush=True)
    with host.open(rendezvous(host, world)) as group:
        group.join()
        print("met", flush=True)
        while True:
            time.sleep(LIMIT_S) if is_stuck else group.send(torch.zeros(1_000_000, dtype=torch.uint8))


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, port, rank, world = sys.argv[1], *map(int, sys.argv[2:])
    try:
        _receive_for_ever(port, rank, world) if what == "receive" else _send_for_ever(world, what == "stick")
    except GroupBroken as broken:
        sys.exit(str(broken))
