"""Updates of a real vLLM and a real SGLang with two workers on a CPU."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_like.serving.engines.base import WeightUpdate
from areal_like.serving.engines.external.external_engine import ExternalEngine
from areal_like.weights.collective import BroadcastHost
from areal_like.weights.disk import publish_weights
from areal_like.weights.errors import BadWeights
from areal_like.weights.flat_buckets import flatten
from areal_like.weights.hash_shares import hash_share
from areal_like.weights.index import read_index
from tests.support import sglang_servers, vllm_servers
from tests.support.embedded_adapters import logprobs_by
from tests.support.engines import SHAPE
from tests.support.sglang_servers import PROMPT, reference, tensors_of
from tests.support.tiny_models import write_tiny_model
from tests.support.weights_group import rendezvous, send

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CLOSE = 1e-4
FEW = (
    *("sglang.context_length=512", "sglang.mem_fraction_static=0.2", "actor.dtype=float32"),
    *("sglang.max_running_requests=8", "+sglang.extra_args.max_total_tokens=16384"),
)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither engine starts more workers than there are NUMA nodes, unless each is given its cores."""
    ids = sorted(os.sched_getaffinity(0))
    for engine in ("VLLM", "SGLANG"):
        monkeypatch.setenv(f"{engine}_CPU_OMP_THREADS_BIND", f"{ids[0]}|{ids[-1]}")


def published(folder: Path, version: int) -> WeightUpdate:
    made = publish_weights(folder, version, tensors_of(version), None, "test")
    return WeightUpdate(version, read_index(made), made)


def damage(update: WeightUpdate, name: str) -> None:
    content = bytes(dict(tensors_of(update.version))[name].contiguous().view(torch.uint8).numpy())
    assert update.folder is not None
    (file,) = (path for path in update.folder.glob("bucket-*") if content in path.read_bytes())
    changed = bytearray(file.read_bytes())
    changed[changed.index(content) + 9] ^= 1
    file.write_bytes(changed)


async def apply(engine: ExternalEngine, update: WeightUpdate) -> None:
    pauses = bool(engine.native_pauses)
    if pauses:
        await engine.pause("keep")
    await engine.commit(update)
    if pauses:
        await engine.resume()


async def update_each_way(engine: ExternalEngine, folder: Path, on_disk: Path) -> None:
    """From files in shared memory, from such files with a damaged byte in the part of each worker, sent to both, and
    from files elsewhere."""
    await engine.ready()
    assert engine.info.processes == 2 and engine.info.devices == ()
    first = published(folder, 1)
    await engine.stage(first)
    await apply(engine, first)
    await shows(engine, 1)
    for worker, version in ((0, 2), (1, 3)):
        bad = published(folder, version)
        share = hash_share(bad.index.tensors, worker, 2)
        name = max(share, key=lambda name: (dict(tensors_of(version))[name].nbytes, name))
        damage(bad, name)
        with pytest.raises(BadWeights, match=f"tensor {name} .*is corrupted"):
            await engine.stage(bad)
        await engine.discard()
    host, weights = BroadcastHost("127.0.0.1", 0), flatten(4, tensors_of(4), None, "test")
    at = rendezvous(host, 3, timeout_s=60.0)
    sent = WeightUpdate(4, weights.index, None, at)
    await asyncio.gather(asyncio.to_thread(send, host, at, weights.contents), engine.stage(sent))
    await shows(engine, 1)
    await apply(engine, sent)
    await shows(engine, 4)
    host.close()
    for version in (5, 6):
        elsewhere = published(on_disk, version)
        await engine.stage(elsewhere)
        await apply(engine, elsewhere)
        await shows(engine, version)
    bad = published(on_disk, 7)
    name = max(hash_share(bad.index.tensors, 1, 2), key=lambda name: (dict(tensors_of(7))[name].nbytes, name))
    damage(bad, name)
    with pytest.raises(BadWeights, match=f"tensor {name} .*is corrupted"):
        await engine.stage(bad)


async def shows(engine: ExternalEngine, seed: int) -> None:
    assert await engine.logprobs(PROMPT) == pytest.approx(logprobs_by(reference(seed), PROMPT), abs=CLOSE)


@pytest.mark.xdist_group("vllm_alone")
def test_two_workers_of_vllm_verify_files_together_and_receive_what_is_sent(
    tmp_path: Path, shared_folder: Path
) -> None:
    with vllm_servers.started(tmp_path, tensor=2) as server:
        vllm_servers.run_with_engine(
            server, lambda engine, _: update_each_way(engine, shared_folder, tmp_path / "weights")
        )


@pytest.mark.xdist_group("sglang")
def test_two_schedulers_of_sglang_load_files_and_receive_what_is_sent(tmp_path: Path, shared_folder: Path) -> None:
    model = write_tiny_model(tmp_path / "model", **SHAPE)
    with sglang_servers.started(tmp_path, model, *FEW, tensor=2) as server:

        async def test(engine: Any) -> None:
            await update_each_way(engine, shared_folder, tmp_path / "weights")

        server.ask(test)
