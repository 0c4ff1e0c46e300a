"""Server and trainer of each transport in two processes: how long an update stalls generation, and the time from the
beginning of a publication until the weights are served.

`python tests/bench/weights_transports.py MEGABYTES` is the server: it reads commands from its standard input.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from areal_like.serving.engines.embedded.weights.double_buffer import DoubleBuffer  # noqa: E402
from areal_like.weights.collective import BroadcastHost  # noqa: E402
from areal_like.weights.disk import load_version, publish_weights, remove_versions  # noqa: E402
from areal_like.weights.fingerprint import compare, tensor_hash  # noqa: E402
from areal_like.weights.flat_buckets import FlatWeights, flatten  # noqa: E402
from areal_like.weights.index import dump_index, parse_index  # noqa: E402
from areal_like.weights.kept_group import KeptGroup  # noqa: E402
from areal_like.weights.receive import receive_tensors  # noqa: E402
from areal_like.weights.rendezvous import Rendezvous  # noqa: E402

COPY = "copy in memory"
LIMIT_S = 120.0


def make_model(num_bytes: int, layers: int = 30) -> dict[str, Tensor]:
    """An embedding of a fifth, and layers of seven matrices and two norms each."""
    width = 576
    tensors = {"model.embed_tokens.weight": torch.randn(num_bytes // 5 // 4 // width, width)}
    rows = (num_bytes - tensors["model.embed_tokens.weight"].nbytes) // 4 // width // layers // 7
    for layer in range(layers):
        for part in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
            tensors[f"model.layers.{layer}.{part}.weight"] = torch.randn(max(1, rows), width)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{part}.weight"] = torch.randn(width)
    return tensors


class Server:
    """Loads into a second buffer, swaps, and verifies."""

    def __init__(self, megabytes: int) -> None:
        model = nn.Module()
        for name, tensor in make_model(megabytes * 1_000_000).items():
            *owners, last = name.split(".")
            owner = model
            for part in owners:
                if not hasattr(owner, part):
                    owner.add_module(part, nn.Module())
                owner = getattr(owner, part)
            owner.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
        self.weights = DoubleBuffer(model)
        self.newest, self.group = -1, KeptGroup()

    def copy(self) -> float:
        source = dict(self.weights.tensors())
        target = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
        began = time.perf_counter()
        for name, tensor in source.items():
            target[name].copy_(tensor)
        return time.perf_counter() - began

    def take(self, command: dict[str, Any]) -> float:
        """Applies an update; returns the seconds in which nothing can be generated."""
        if "folder" in command:
            loaded = load_version(Path(command["folder"]), self.weights.expected(), self.newest)
            self.weights.stage(loaded.tensors)
            hashes, self.newest = loaded.hashes, loaded.version
        else:
            index = parse_index(command["index"], "index")
            self.weights.fill(receive_tensors(Rendezvous(**command["meeting"]), 1, index, self.group))
            hashes, self.newest = {info.name: info.hash for info in index.tensors}, index.version
        began = time.perf_counter()
        self.weights.swap()
        compare(hashes, {name: tensor_hash(tensor) for name, tensor in self.weights.tensors()}, self.newest)
        return time.perf_counter() - began


def serve(megabytes: int) -> None:
    torch.set_num_threads(1)
    server = Server(megabytes)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(server.copy() if command == COPY else server.take(command)), flush=True)


class Times:
    """Seconds of each repetition."""

    def __init__(self) -> None:
        self.stall_s: list[float] = []
        self.publish_s: list[float] = []
        self.served_s: list[float] = []

    def row(self, copy_s: float) -> dict[str, Any]:
        stall_s, served_s = median(self.stall_s), median(self.served_s)
        return {
            "stall_s": stall_s,
            "stall_times_copy": stall_s / copy_s,
            "publish_s": median(self.publish_s),
            "published_to_served_s": served_s,
            "published_to_served_times_copy": served_s / copy_s,
            "runs": {"stall_s": self.stall_s, "publish_s": self.publish_s, "served_s": self.served_s},
        }


def measure(folder: Path, megabytes: int, repeats: int) -> dict[str, Any]:
    """Transports are interleaved, after two repetitions that are not counted."""
    tensors = make_model(megabytes * 1_000_000)
    words = [sys.executable, __file__, str(megabytes)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdin is not None and process.stdout is not None
    commands, answers = process.stdin, process.stdout

    def send_command(command: Any) -> None:
        commands.write(json.dumps(command) + "\n")
        commands.flush()

    host = BroadcastHost("127.0.0.1", 0)
    group = KeptGroup(host=host)
    rooms: list[FlatWeights | None] = [None, None]
    copies: list[float] = []
    times = {"disk": Times(), "collective": Times()}

    def by_disk(version: int) -> float:
        began = time.perf_counter()
        path = publish_weights(folder, version, tensors.items(), None, "bench")
        published = time.perf_counter() - began
        send_command({"folder": str(path)})
        return published

    def by_group(version: int) -> float:
        began = time.perf_counter()
        flat = flatten(version, tensors.items(), None, "bench", rooms.pop(0))
        published = time.perf_counter() - began
        _send(group, host, flat, send_command)
        rooms.append(flat)
        return published

    ways: dict[str, Callable[[int], float]] = {"disk": by_disk, "collective": by_group}
    version = 0
    for repeat in range(-2, repeats):
        send_command(COPY)
        copies.append(float(answers.readline()))
        for name, way in ways.items():
            began = time.perf_counter()
            publish_s = way(version)
            stall_s = float(answers.readline())
            if repeat >= 0:
                times[name].served_s.append(time.perf_counter() - began)
                times[name].publish_s.append(publish_s)
                times[name].stall_s.append(stall_s)
            version += 1
        remove_versions(folder, keep=set())
    group.leave()
    host.close()
    commands.close()
    process.wait(LIMIT_S)
    answers.close()
    copy_s = median(copies)
    return {"copy_s": copy_s, **{name: each.row(copy_s) for name, each in times.items()}}


def _send(kept: KeptGroup, host: BroadcastHost, flat: FlatWeights, send_command: Callable[[Any], None]) -> None:
    rendezvous = Rendezvous(host.host, host.port, f"v{flat.index.version}", "gloo", 1, 2, LIMIT_S, kept.name)
    send_command({"index": dump_index(flat.index), "meeting": rendezvous._asdict()})
    with kept.opened(rendezvous) as group:
        group.join()
        for content in flat.contents:
            group.send(content)
        group.finish()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
