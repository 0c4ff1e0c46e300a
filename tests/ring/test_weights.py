"""Damaged weights are refused by name, and the previous ones stay in use."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from areal_like.models import model_folder
from areal_like.process.blocking_http import BlockingHttpClient
from areal_like.process.errors import HttpError
from areal_like.process.run_memory import memory_folder
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.weights.disk import publish_weights
from areal_like.weights.probe import Probe
from tests.ring.server import CONTROLLER, MODEL, Server, flip_a_byte, serving
from tests.ring.start import SHORT, Running, running, shared_memory, wait_until_gone
from tests.ring.test_servers_alone import KEY, VARIABLE
from tests.ring.test_servers_alone import serving as launched

pytestmark = pytest.mark.xdist_group("ring-2")

CHANGED = "model.norm.weight"
"""It differs from version to version."""
TENSOR = "model.layers.1.mlp.up_proj.weight"
PROBE = [5, 9, 13, 20, 7]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It serves version 3 of the weights."""
    with serving(tmp_path_factory.mktemp("weights") / "run") as started:
        started.call("POST", "/control/update_weights", update_body(published(started, 3)))
        yield started


def published(server: Server, version: int) -> Path:
    return publish(server.run.directory / "published", version, server.run.run_id)


def publish(root: Path, version: int, run_id: str) -> Path:
    """As a trainer does, with a probe that is right for these weights; they differ from version to version."""
    model = AutoModelForCausalLM.from_pretrained(model_folder(MODEL))
    with torch.no_grad():
        model.model.norm.weight.mul_(1 + version / 10)
    probe = Probe(PROBE, LLMEngine(model).logprobs(PROBE))
    tensors = [(name, tensor.detach()) for name, tensor in model.named_parameters()]
    return publish_weights(root, version, tensors, probe, run_id)


def update_body(folder: Path, **changes: object) -> dict[str, object]:
    """How a controller says it."""
    index = json.loads((folder / "index.json").read_bytes())
    return {"version": index["version"], "folder": str(folder), "probe": index["probe"], **changes}


def answers(server: Server) -> list[dict[str, Any]]:
    sampling = {"temperature": 1.0, "max_new_tokens": 8}
    group = {"id": "g", "prompt": [3, 4, 12, 5, 6, 13], "n": 4, "seed": 1, "sampling": sampling}
    samples: list[dict[str, Any]] = server.call("POST", "/generate", {"groups": [group]})["samples"]
    return samples


def flipped(server: Server, version: int) -> dict[str, object]:
    folder = published(server, version)
    flip_a_byte(folder, TENSOR)
    return update_body(folder)


def without_a_layer(server: Server, version: int) -> dict[str, object]:
    folder = published(server, version)
    index = json.loads((folder / "index.json").read_bytes())
    index["tensors"] = [info for info in index["tensors"] if ".layers.2." not in info["name"]]
    (folder / "index.json").write_text(json.dumps(index))
    return update_body(folder)


def stale(server: Server, version: int) -> dict[str, object]:
    return update_body(published(server, 2))


def other_probe(server: Server, version: int) -> dict[str, object]:
    """The trainer's own model differs from what it published."""
    folder = published(server, version)
    probe = json.loads((folder / "index.json").read_bytes())["probe"]
    probe["logprobs"][2] += 0.01
    return update_body(folder, probe=probe)


def of_another_run(server: Server, version: int) -> dict[str, object]:
    folder = published(server, version)
    index = json.loads((folder / "index.json").read_bytes())
    (folder / "index.json").write_text(json.dumps({**index, "run_id": "another"}))
    return update_body(folder)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (flipped, f"version 4 of the weights: tensor {TENSOR} (layer 1) is corrupted"),
        (without_a_layer, "version 4 of the weights: layer 2: 11 tensors are missing: model.layers.2."),
        (stale, "version 2 of the weights is not newer than 3, which is served: it is stale"),
        (other_probe, "trainer and server compute different models"),
        (of_another_run, "version 4 of the weights belongs to run another, and this is run run"),
    ],
)
def test_a_server_refuses_damaged_weights_and_keeps_the_old_ones(
    server: Server, fault: Callable[[Server, int], dict[str, object]], words: str
) -> None:
    before, hashes = answers(server), server.call("GET", "/control/fingerprint")
    status, message = server.refusal("/control/update_weights", fault(server, 4))
    assert status == 409
    assert words in message
    assert server.call("GET", "/health")["version"] == 3
    assert server.call("GET", "/control/fingerprint") == hashes
    assert answers(server) == before
    assert {version for sample in before for version in sample["versions"]} == {3}


def test_after_refused_weights_a_server_accepts_valid_ones(server: Server) -> None:
    before = answers(server)
    done = server.call("POST", "/control/update_weights", update_body(published(server, 5)))
    assert (done["version"], server.call("GET", "/health")["version"]) == (5, 5)
    assert answers(server) != before


def test_a_publication_that_is_damaged_in_a_run_ends_it_with_the_name_of_the_tensor(tmp_path: Path) -> None:
    words = (*SHORT, "total_train_steps=1000", "evaluator.freq_steps=null", "recover.mode=disabled")
    with running(tmp_path, *words) as ring:
        ring.wait_for_step(2)
        while ring.process.poll() is None:
            if damaged_a_publication(ring):
                with suppress(subprocess.TimeoutExpired):  # a newer version may have gone past it
                    ring.process.wait(120)
        ended = ring.wait()
    assert ended.code == 1, ended.text
    assert f"tensor {TENSOR} (layer 1) is corrupted" in ended.out
    assert "server/0 cannot serve weights v" in ended.out and "Traceback" not in ended.out
    assert wait_until_gone(ended.directory) == {} and not shared_memory(ended.directory)


def test_damaged_memory_costs_one_server_and_then_ends_the_command_with_the_tensor(tmp_path: Path) -> None:
    """Between staging and commit, so that nothing but the comparison after the swap can find it."""
    words = f"version 3 of the weights: tensor {CHANGED}: served with hash "
    with launched(tmp_path, "trial_name=t", f"rollout.api_key_var={VARIABLE}", **{VARIABLE: KEY}) as servers:
        folder = publish(tmp_path / "published", 3, "any")
        for start in (1, 2):
            (address,) = servers.addresses(start)
            with closing(BlockingHttpClient(CONTROLLER, KEY)) as caller:
                caller.json("POST", address, "/control/stage_weights", update_body(folder))
                assert flip_in_memory(servers.pid(), tensor_bytes(folder, CHANGED)) > 0
                with pytest.raises(HttpError) as damaged:
                    caller.json("POST", address, "/control/commit_weights", {"version": 3})
            assert damaged.value.status == 503 and words in damaged.value.message
        assert servers.process.wait(120) == 1, servers.text()
    text = servers.text()
    (replaced,) = [line for line in text.splitlines() if "it is replaced" in line]
    assert words in replaced and "(incarnation 2)" in replaced
    failed = [line for line in text.splitlines() if line.startswith("server/0 failed") and line != replaced]
    assert len(failed) == 1 and words in failed[0], text
    assert "a server was already replaced because of damage to this version" in text


def tensor_bytes(folder: Path, tensor: str) -> bytes:
    from safetensors import safe_open

    index = json.loads((folder / "index.json").read_bytes())
    place = next(info["bucket"] for info in index["tensors"] if info["name"] == tensor)
    with safe_open(folder / index["buckets"][place]["file"], "pt") as file:
        content: bytes = file.get_tensor(tensor).numpy().tobytes()
    return content


def flip_in_memory(pid: int, content: bytes) -> int:
    """Changes a bit in every place of a process's own memory that holds these bytes; returns how many there were."""
    count = 0
    regions = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for place, rights, *_ in regions:
            first, last = (int(part, 16) for part in place.split("-"))
            if not rights.startswith("rw-p"):
                continue
            memory.seek(first)
            with suppress(OSError):
                held, at = memory.read(last - first), -1
                while (at := held.find(content, at + 1)) >= 0:
                    memory.seek(first + at)
                    memory.write(bytes([content[0] ^ 1]))
                    count += 1
    return count


def damaged_a_publication(ring: Running) -> bool:
    """Damages a publication while the server is stopped, so that it cannot have loaded it; there may be none."""
    memory = memory_folder(json.loads((ring.directory / "run.json").read_text())["run_id"])
    (server,) = ring.pids("server")
    os.kill(server, signal.SIGSTOP)
    try:
        known = set(memory.glob("v*"))
        for _ in range(200):
            if new := set(memory.glob("v*")) - known:
                flip_a_byte(new.pop(), TENSOR)
                return True
            time.sleep(0.01)
        return False
    finally:
        os.kill(server, signal.SIGCONT)
