"""Our worker in SGLang's schedulers receives sent weights beside the live ones, by each path; SGLang is not loaded."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import torch

from areal_like.serving.engines.base import EngineInfo, WeightUpdate
from areal_like.serving.engines.external.engine_workers import EngineWorkers
from areal_like.serving.engines.external.external_engine import IncompatibleEngine
from areal_like.serving.engines.external.http_calls import RefusedCall
from areal_like.serving.engines.external.plugin.background_job import BUSY, BackgroundJob, result_of
from areal_like.serving.engines.sglang import engine as sglang_engine
from areal_like.serving.engines.sglang.engine import SGLangEngine
from areal_like.serving.engines.sglang.plugin import launch, worker
from areal_like.serving.engines.sglang.plugin.calls import BACKEND, ROUTE, call_body, call_results, staged_group
from areal_like.serving.engines.sglang.plugin.worker import SchedulerWorker
from areal_like.serving.engines.sglang.weights import WeightLoader
from areal_like.weights.collective import BroadcastHost
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.flat_buckets import FlatWeights
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.transfer_path import Receiver, choose_path
from tests.support.gpu_transfers import StandIn, replace_nccl, replace_shared_memory
from tests.support.planning import loaded
from tests.support.weights_group import BackgroundCall, flat, model, rendezvous

pytestmark = pytest.mark.timeout(300)
CPU = torch.device("cpu")


class Schedulers:
    """Two of one server, and the trainer."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.host = BroadcastHost("127.0.0.1", 0)
        self.trainer = KeptGroup(host=self.host)
        self.workers = [SchedulerWorker(rank, device) for rank in range(2)]
        self.calls = EngineWorkers("SGLang", self._call)

    async def _call(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        body = call_body(method, *arguments)
        results = [each.call(body["group_name"], body["master_address"]) for each in self.workers]
        return call_results(json.dumps(results) + " | " + json.dumps(results))  # as with data-parallel attention

    def update(self, weights: FlatWeights, backend: str) -> list[dict[str, Any]]:
        version = weights.index.version
        at = rendezvous(self.host, 3, f"g{version}.s", timeout_s=60.0)
        at = at._replace(backend=backend, continues=self.trainer.name)
        sending = BackgroundCall(partial(self._send, at, weights))
        try:
            return asyncio.run(self.calls.stage(WeightUpdate(version, weights.index, None, at)))
        finally:
            sending.wait()

    def _send(self, at: Any, weights: FlatWeights) -> None:
        with self.trainer.opened(at) as group:
            group.join()
            for content in weights.contents:
                group.send(content)
            group.finish()

    def close(self) -> None:
        self.trainer.leave()
        for each in self.workers:
            each._group.leave()
        self.host.close()


@pytest.fixture
def schedulers() -> Iterator[Schedulers]:
    found = Schedulers()
    yield found
    found.close()


def is_taken(each: SchedulerWorker, version: int) -> bool:
    taken = each.take(staged_group(version))
    return taken is not None and all(torch.equal(dict(taken)[name], tensor) for name, tensor in model(version).items())


@pytest.mark.parametrize("backend", ["gloo", "nccl", "ipc"])
def test_sent_weights_come_into_each_scheduler_and_are_taken_once(
    backend: str, schedulers: Schedulers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nccl, opened = replace_nccl(monkeypatch), replace_shared_memory(monkeypatch, tmp_path)
    for version in (1, 2):
        results = schedulers.update(flat(version), backend)
        assert [result["rank"] for result in results] == [0, 1]
        assert all(is_taken(each, version) and not is_taken(each, version) for each in schedulers.workers)
    assert [member.rank for member in sorted(nccl.made, key=_rank)] == ([0, 1, 2] if backend == "nccl" else [])
    assert len(opened) == (4 if backend == "ipc" else 0), "one group for both versions"
    if backend == "nccl":
        assert len({len(member.works) for member in nccl.made}) == 1 and nccl.made[0].works


def _rank(member: StandIn) -> int:
    return member.rank


def test_their_gpus_decide_the_path_as_those_of_vllm_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"GPU-{number}"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(worker, "_workers", [])
    monkeypatch.setattr(worker, "gather_texts", lambda text, group: [text])

    def devices(*gpus: int) -> tuple[str, ...]:
        async def call(method: str, *arguments: str) -> list[dict[str, Any]]:
            results = []
            for rank, gpu in enumerate(gpus):
                runner = SimpleNamespace(gpu_id=gpu, tp_rank=rank, device="cuda" if gpu >= 0 else "cpu")
                worker._workers.clear()
                manager = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner), tp_cpu_group=None)
                results += json.loads(worker.call_worker(manager, method, ""))
            return results

        return asyncio.run(EngineWorkers("SGLang", call).read_places())

    def path(trainer: str, *gpus: int) -> str:
        return choose_path([trainer], [Receiver("server/0", len(gpus), devices(*gpus))]).backend

    assert devices(1, 2) == ("GPU-1", "GPU-2")
    assert path("GPU-0", 1, 2) == "nccl" and path("GPU-1", 1) == "ipc" and path("GPU-1", 1, 2) == "gloo"
    assert path("GPU-0", -1) == "gloo"


def test_damaged_weights_are_staged_in_no_scheduler(schedulers: Schedulers) -> None:
    weights = flat(1)
    weights.contents[0][7] ^= 1
    with pytest.raises(BadWeights, match="is corrupted"):
        schedulers.update(weights, "gloo")
    assert not any(each.take(staged_group(1)) for each in schedulers.workers)


def test_discarded_weights_are_not_taken(schedulers: Schedulers) -> None:
    schedulers.update(flat(1), "gloo")
    asyncio.run(schedulers.calls.discard())
    assert not any(each.take(staged_group(1)) for each in schedulers.workers)
    schedulers.update(flat(2), "gloo")
    assert all(is_taken(each, 2) for each in schedulers.workers)


def test_weights_that_arrive_after_they_were_discarded_are_not_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    each, may_arrive = SchedulerWorker(0, CPU), threading.Event()

    def arrival(message: str, rank: int) -> Any:
        def tensors(*given: Any) -> Iterator[tuple[str, torch.Tensor]]:
            assert message == "2" or may_arrive.wait(60)
            yield from model(int(message)).items()

        return SimpleNamespace(index=flat(int(message)).index, tensors=tensors, is_divided=False)

    def wait_for(job: BackgroundJob | None) -> None:
        while BUSY in result_of(job):
            threading.Event().wait(0.001)

    monkeypatch.setattr(worker, "Arrival", SimpleNamespace(of=arrival))
    each.call("areal_stage", "1")
    late = each._staging
    each.call("areal_discard", "")
    each.call("areal_stage", "2")
    wait_for(each._staging)
    may_arrive.set()
    wait_for(late)
    assert not is_taken(each, 1) and is_taken(each, 2)


def test_calls_of_others_reach_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[Any] = []
    original: Callable[..., Any] = lambda *given, **named: passed.append((given, named))  # noqa: E731
    request = SimpleNamespace(backend="nccl", group_name="theirs", master_address="10.0.0.1")
    launch._call(original, "manager", request)
    launch._receive(original, "updater", group_name="theirs", names=["a"])
    assert passed == [(("manager", request), {}), (("updater",), {"group_name": "theirs", "names": ["a"]})]
    monkeypatch.setattr(worker, "_workers", [])
    with pytest.raises(ValueError, match=f"{BACKEND} v3 is not staged"):
        launch._receive(original, "updater", group_name=staged_group(3), names=[])


def test_a_trainer_that_is_gone_ends_the_wait_of_the_schedulers(schedulers: Schedulers) -> None:
    at = rendezvous(schedulers.host, 3, "g1.s", timeout_s=1.0)
    with pytest.raises(GroupBroken, match=r"weights\.broadcast\.timeout_s"):
        asyncio.run(schedulers.calls.stage(WeightUpdate(1, flat(1).index, None, at)))


class Calls:
    """SGLang's routes, of which one may refuse. `in_session`: a killed run has left a session."""

    def __init__(self, refusing: str = "", in_session: bool = False) -> None:
        self.made: list[tuple[str, Any]] = []
        self._refusing, self._in_session = refusing, in_session

    async def post(self, path: str, body: Any = None) -> Any:
        self.made.append((path, body))
        if path == self._refusing:
            raise RefusedCall("SGLang", 400, "Failed to update parameter online: it is broken")
        if path in ("/begin_weight_update", "/end_weight_update"):
            begins = path == "/begin_weight_update"
            if self._in_session == begins:
                raise RefusedCall("SGLang", 400, f"a weight-update session is {'' if begins else 'not '}open")
            self._in_session = begins
        return {"message": json.dumps([{"rank": 0, "expected": {}, "machine": "here", "devices": []}])}

    def methods(self) -> list[str]:
        """Those of our worker that were called."""
        return [body["group_name"] for path, body in self.made if path == ROUTE]

    async def read(self, method: str, path: str, body: Any = None) -> bytes:
        return b""


@pytest.mark.parametrize("refusing", ["", "/update_weights_from_distributed"])
def test_sglang_loads_what_was_staged_in_one_session_that_always_ends(refusing: str) -> None:
    calls = Calls(refusing)
    loader = WeightLoader(calls)  # type: ignore[arg-type]
    update = WeightUpdate(7, flat(7).index, None, rendezvous(SimpleNamespace(host="h", port=1), 2))  # type: ignore[arg-type]

    async def updated() -> None:
        await loader.stage(update)
        calls.made.clear()
        await loader.commit(update)

    if refusing:
        with pytest.raises(BadWeights, match=r"version 7 of the weights: SGLang refuses: .* broken"):
            asyncio.run(updated())
    else:
        asyncio.run(updated())
    (begin, _), (load, body), (end, _) = calls.made
    assert [begin, load, end] == ["/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update"]
    assert body["group_name"] == staged_group(7) and body["weight_version"] == "7"


def test_weights_that_sglang_cannot_take_are_refused_with_the_key() -> None:
    loader = WeightLoader(Calls(ROUTE))  # type: ignore[arg-type]
    loader.takes_sent = False
    update = WeightUpdate(7, flat(7).index, None, rendezvous(SimpleNamespace(host="h", port=1), 2))  # type: ignore[arg-type]
    with pytest.raises(BadWeights, match=r"^sglang\.dp_size: "):
        asyncio.run(loader.stage(update))
    asyncio.run(loader.discard())


SENT = WeightUpdate(7, flat(7).index, None, rendezvous(SimpleNamespace(host="h", port=1), 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("in_session", [True, False])
def test_what_a_killed_run_left_in_sglang_is_removed_before_the_first_update(
    in_session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, calls = engine_at(Calls(in_session=in_session), monkeypatch)

    async def updated() -> None:
        await engine.ready()
        assert calls.methods() == ["areal_place", "areal_discard"]
        await engine.stage(SENT)
        await engine.commit(SENT)

    asyncio.run(updated())


@pytest.mark.parametrize(
    ("sizes", "mode", "is_refused"),
    [
        ({"pp_size": 2}, "nccl", True),
        ({"pp_size": 2, "dp_size": 2, "enable_dp_attention": True}, "collective", True),
        ({"dp_size": 2}, "collective", True),
        ({"dp_size": 2, "enable_dp_attention": True}, "collective", False),
        ({"dp_size": 2, "pp_size": 2}, "disk", False),
    ],
)
def test_an_attached_sglang_that_takes_no_sent_weights_is_refused_at_once(
    sizes: dict[str, Any], mode: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = {"version": "0.5.21", "device": "cpu", "skip_tokenizer_init": False, "context_length": 64}
    server |= {
        "enable_deterministic_inference": False,
        "dp_size": 1,
        "pp_size": 1,
        "enable_dp_attention": False,
        **sizes,
    }
    about = {"/server_info": server, "/model_info": {"is_generation": True, "tokenizer_path": "m"}}
    monkeypatch.setattr(sglang_engine, "max_sequence_length", lambda folder: 64)
    monkeypatch.setattr(sglang_engine, "vocab_size", lambda folder: 60)
    monkeypatch.setattr(sglang_engine, "eos_token_ids", lambda folder: (1,))
    engine = SGLangEngine("127.0.0.1:1", "", loaded("grpo", f"actor.weight_update_mode={mode}").config, Path("model"))
    monkeypatch.setattr(engine.calls, "get", AsyncMock(side_effect=about.__getitem__))
    if is_refused:
        with pytest.raises(IncompatibleEngine, match=f"pp_size={server['pp_size']}; .*a pipeline .*mode=disk"):
            asyncio.run(engine.read_info())
    else:
        asyncio.run(engine.read_info())


def engine_at(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> tuple[SGLangEngine, Calls]:
    async def info() -> EngineInfo:
        return EngineInfo("sglang", "0.5.21", "m", 100, 60, (1,))

    engine = SGLangEngine("127.0.0.1:1", "", loaded("grpo").config, Path("model"))
    engine.calls = engine._weights._calls = calls  # type: ignore[assignment]
    monkeypatch.setattr(engine, "read_info", info)
    monkeypatch.setattr(engine, "generate_token", AsyncMock())
    return engine, calls


def test_the_schedulers_are_asked_to_discard_only_what_was_sent(tmp_path: Path) -> None:
    calls = Calls()
    loader = WeightLoader(calls)  # type: ignore[arg-type]
    damaged = WeightUpdate(7, SENT.index, tmp_path)

    async def discarded() -> None:
        with pytest.raises((BadWeights, OSError)):
            await loader.stage(damaged)
        await loader.discard()
        assert calls.methods() == []
        await loader.stage(SENT)
        await loader.discard()
        await loader.discard()
        await loader.stage(SENT)
        await loader.commit(SENT)
        await loader.discard()

    asyncio.run(discarded())
    assert calls.methods().count("areal_discard") == 1
