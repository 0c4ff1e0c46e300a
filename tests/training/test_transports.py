"""The trainer's weight transports: each listens on the configured address and sends what was published."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from areal_like.config.problems import ConfigError
from areal_like.process.identity import KEEPS_COPY_ON_GPU
from areal_like.process.patience import REQUEST_KEY, WaitLimit
from areal_like.training.transports import collective, open_transport
from areal_like.training.transports import sender as sender_module
from areal_like.training.transports.collective import CollectiveTransport
from areal_like.training.transports.sender import WeightSender
from areal_like.weights.collective import BroadcastGroup, BroadcastHost
from areal_like.weights.index import parse_index
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.probe import Probe
from areal_like.weights.receive import receive_tensors
from tests.support.rollout_world import grpo
from tests.support.stand_in_gpu import StandInGpu
from tests.support.weights_group import BackgroundCall, flat, model, rendezvous

pytestmark = pytest.mark.timeout(300)

PROBE = Probe([1, 2], [-0.5])


class Controller:
    """Answers the sending thread: hands out `meetings` one by one; a test ends each."""

    def __init__(self) -> None:
        self.rendezvous_bodies: list[dict[str, Any]] = []
        self.over: set[str] = set()
        self.versions: list[int] = []
        self.kept = ""
        self.ends = False

    def ask_once(self, path: str, body: dict[str, Any]) -> dict[str, object]:
        time.sleep(0.01)
        if path == "/sending":
            return {"over": body["group"] in self.over, "why": ""}
        if path == "/withdraw":
            return {}
        self.versions.append(body["version"])
        self.kept = body["kept"]
        if self.ends:
            return {"end": True}
        return {"meeting": self.rendezvous_bodies.pop(0)} if self.rendezvous_bodies else {"wait": True}


def engine() -> Any:
    world = SimpleNamespace(is_first=True, device=torch.device("cpu"))
    return SimpleNamespace(world=world, adapter=None)


def run_of(*overrides: str) -> Any:
    return SimpleNamespace(config=grpo("actor.weight_update_mode=collective", *overrides), run_id="run-1")


def owned() -> None:
    """The run is still this process's own."""


def opened(*overrides: str) -> CollectiveTransport:
    actual = open_transport(run_of(*overrides), engine(), Controller(), owned)  # type: ignore[arg-type]
    assert isinstance(actual, CollectiveTransport)
    return actual


@pytest.mark.shows("actor.weight_update_mode")
@pytest.mark.parametrize("mode", ["collective", "xccl", "nccl"])
def test_each_name_of_a_transport_selects_it(mode) -> None:
    opened(f"actor.weight_update_mode={mode}").close(early=True)


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as actual:
        return int(actual.getsockname()[1])


@pytest.mark.shows("weights.broadcast.host", "weights.broadcast.port")
def test_host_and_port_are_the_address_of_the_rendezvous() -> None:
    port = free_port("127.0.0.2")
    transport = opened("weights.broadcast.host=127.0.0.2", f"weights.broadcast.port={port}")
    publication = transport.publish(3, model().items(), PROBE)()
    assert publication["meeting"] == {"host": "127.0.0.2", "port": port, "devices": []}
    socket.create_connection(("127.0.0.2", port), timeout=60).close()
    assert (publication["version"], publication["transport"], publication["folder"]) == (3, "collective", None)
    index = parse_index(publication["index"], "index")
    assert index.probe == PROBE and [info.name for info in index.tensors] == list(model())
    transport.close(early=True)


def test_a_port_in_use_is_named_by_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = rf"^weights\.broadcast\.port: cannot listen on 127\.0\.0\.1:{port}: .* choose another, or port 0"
        with pytest.raises(ValueError, match=words):
            opened(f"weights.broadcast.port={port}")


def test_weights_being_sent_are_not_changed_by_a_publication() -> None:
    host, controller = BroadcastHost("127.0.0.1", 0), Controller()
    sender = WeightSender(host, controller.ask_once, WaitLimit(30.0, REQUEST_KEY))
    first, at = flat(1), rendezvous(host, world=2)
    sender.offer(first)
    controller.rendezvous_bodies.append(at._replace(first_rank=0)._asdict())
    taken: dict[str, torch.Tensor] = {}
    go_on = threading.Event()

    def slowly() -> None:
        for name, tensor in receive_tensors(at, 1, first.index):
            taken[name] = tensor.clone()
            go_on.wait(120)

    server = BackgroundCall(slowly)
    while not taken:
        time.sleep(0.01)
    for version in (2, 3, 4, 5):
        sender.offer(flat(version, sender.take_buffer()))
    go_on.set()
    assert server.wait() is None
    controller.over.add(at.group)
    assert all(torch.equal(taken[name], tensor) for name, tensor in model(1).items())
    controller.ends = True
    sender.close(early=False)
    assert controller.versions[-1] == 5
    host.close()


def test_the_newest_version_stays_available_until_released() -> None:
    host, controller = BroadcastHost("127.0.0.1", 0), Controller()
    sender = WeightSender(host, controller.ask_once, WaitLimit(30.0, REQUEST_KEY))
    weights = flat(7)
    sender.offer(weights)
    for group in ("a", "b"):
        at = rendezvous(host, world=2, group=group)
        controller.rendezvous_bodies.append(at._replace(first_rank=0)._asdict())
        actual = {name: tensor.clone() for name, tensor in receive_tensors(at, 1, weights.index)}
        controller.over.add(group)
        assert torch.equal(actual["model.turned"], model(7)["model.turned"])
    closing, before = BackgroundCall(lambda: sender.close(early=False)), len(controller.versions)
    while len(controller.versions) < before + 5:
        time.sleep(0.01)
    assert closing.result is None and controller.versions[-1] == 7
    controller.ends = True
    assert closing.wait() is None
    host.close()


def test_the_next_version_goes_to_the_same_group_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    @contextlib.contextmanager
    def own_stream(device: torch.device) -> Iterator[None]:
        order.append("stream")
        yield
        order.append("complete")

    def noting(name: str, plain: Callable[..., None]) -> Callable[..., None]:
        def call(*given: Any) -> None:
            order.append(name)
            plain(*given)

        return call

    for name in ("send", "finish"):
        monkeypatch.setattr(BroadcastGroup, name, noting(name, getattr(BroadcastGroup, name)))
    monkeypatch.setattr(sender_module, "own_stream", own_stream)
    host, controller, server = BroadcastHost("127.0.0.1", 0), Controller(), KeptGroup()
    sender = WeightSender(host, controller.ask_once, WaitLimit(30.0, REQUEST_KEY))
    continues = ""
    for version in (1, 2):
        weights = flat(version)
        sender.offer(weights)
        while controller.versions[-1:] != [version]:
            time.sleep(0.01)
        at = rendezvous(host, world=2, group=f"of v{version}", timeout_s=60.0)._replace(continues=continues)
        controller.rendezvous_bodies.append(at._replace(first_rank=0)._asdict())
        actual = {name: tensor.clone() for name, tensor in receive_tensors(at, 1, weights.index, server)}
        assert torch.equal(actual["model.turned"], model(version)["model.turned"])
        controller.over.add(at.group)
        asked, continues = len(controller.versions), "of v1"
        while len(controller.versions) < asked + 2:
            time.sleep(0.01)
        assert controller.kept == "of v1"
    assert order == 2 * ["stream", *["send"] * len(weights.contents), "finish", "complete"]
    controller.ends = True
    sender.close(early=False)
    server.leave()
    host.close()


def test_a_group_without_members_is_followed_by_another() -> None:
    host, controller = BroadcastHost("127.0.0.1", 0), Controller()
    sender = WeightSender(host, controller.ask_once, WaitLimit(30.0, REQUEST_KEY))
    weights, at = flat(7), rendezvous(host, world=2)
    nowhere = at._replace(first_rank=0, group="nowhere", timeout_s=0.3)
    controller.over.add("nowhere")
    controller.rendezvous_bodies += [nowhere._asdict(), at._replace(first_rank=0)._asdict()]
    sender.offer(weights)
    actual = {name: tensor.clone() for name, tensor in receive_tensors(at, 1, weights.index)}
    assert torch.equal(actual["model.turned"], model(7)["model.turned"])
    controller.over.add(at.group)
    controller.ends = True
    sender.close(early=False)
    host.close()


def test_a_cut_connection_to_the_controller_costs_a_transfer_and_not_the_run(monkeypatch) -> None:
    """The controller still offers the group that the trainer has left, as it does not know yet."""
    monkeypatch.setattr(sender_module, "PAUSE_S", 0.01)
    host, controller, server = BroadcastHost("127.0.0.1", 0), Controller(), KeptGroup()
    sender = WeightSender(host, controller.ask_once, WaitLimit(30.0, REQUEST_KEY))
    weights = flat(7)
    sender.offer(weights)
    first = rendezvous(host, world=2, group="first", timeout_s=60.0)
    left = first._replace(group="second", continues="gone")
    controller.rendezvous_bodies += [each._replace(first_rank=0)._asdict() for each in (left, left, first)]
    actual = {name: tensor.clone() for name, tensor in receive_tensors(first, 1, weights.index, server)}
    assert torch.equal(actual["model.turned"], model(7)["model.turned"])
    controller.over.add("first")
    controller.ends = True
    sender.close(early=False)
    server.leave()
    host.close()


def test_an_adapter_beside_a_model_that_the_servers_cannot_have_is_refused() -> None:
    words = ("actor.weight_update_mode=adapter", "actor.use_lora=true", "actor.init_from_scratch=true")
    with pytest.raises(ConfigError, match=r"actor\.weight_update_mode .*actor\.init_from_scratch"):
        grpo(*words)


def test_weight_files_are_in_the_configured_folder(tmp_path: Path) -> None:
    weights = SimpleNamespace(dtype="float32")
    holder = SimpleNamespace(config=weights, num_weights=10, buffers=lambda: [], world=engine().world)
    config = grpo("actor.weight_update_mode=filesystem")
    run = SimpleNamespace(config=config, run_id="run-1", memory=tmp_path / "none" / "m", weights=tmp_path / "weights")
    transport = open_transport(run, holder, Controller(), owned)  # type: ignore[arg-type]
    publication = transport.publish(2, model().items(), PROBE)()
    assert publication == {
        "version": 2,
        "transport": "disk",
        "folder": str(tmp_path / "weights" / "v000002"),
        "bytes": 40,
    }


@pytest.mark.parametrize("mode", ["disk", "adapter"])
def test_weights_that_an_evaluation_waits_for_stay_in_files_until_it_is_over(tmp_path: Path, mode: str) -> None:
    parameters = [torch.zeros(10)]
    adapter = SimpleNamespace(peft_config={"r": 1})
    holder = SimpleNamespace(
        config=SimpleNamespace(dtype="float32"), num_weights=10, buffers=lambda: [], world=engine().world
    )
    holder.adapter, holder.parameters = adapter, parameters
    words = ("actor.use_lora=true",) if mode == "adapter" else ()
    config = grpo(f"actor.weight_update_mode={mode}", "evaluator.backend=auto", *words)
    run = SimpleNamespace(config=config, run_id="run-1", memory=tmp_path / "none" / "m", weights=tmp_path / "weights")
    transport = open_transport(run, holder, Controller(), owned)  # type: ignore[arg-type]

    def kept_after(versions: Iterable[int]) -> list[int]:
        for version in versions:
            transport.publish(version, model().items(), PROBE)()
        return sorted(int(folder.name[1:]) for folder in (tmp_path / "weights").glob("v*"))

    assert kept_after(range(3)) == [0, 1, 2]
    transport.keep([0, 2])
    assert kept_after(range(3, 7)) == [0, 2, 4, 5, 6]
    transport.keep([2])
    assert kept_after([7]) == [2, 5, 6, 7]
    transport.keep([])
    assert kept_after([8]) == [6, 7, 8]


class HoldingController(Controller):
    """Holds a request for servers until the version is withdrawn."""

    def __init__(self) -> None:
        super().__init__()
        self.withdrawn: list[int] = []
        self.asked, self._changed = threading.Event(), threading.Event()

    def ask_once(self, path: str, body: dict[str, Any]) -> dict[str, object]:
        if path == "/withdraw":
            self.withdrawn.append(body["version"])
            self._changed.set()
            return {}
        if path == "/send" and not self.rendezvous_bodies and not self.ends and body["version"] not in self.withdrawn:
            self.asked.set()
            assert self._changed.wait(60)
            self._changed.clear()
        return super().ask_once(path, body)


def test_the_only_copy_is_overwritten_when_no_server_can_ask_for_it_any_more() -> None:
    host, controller = BroadcastHost("127.0.0.1", 0), HoldingController()
    sender = WeightSender(host, controller.ask_once, WaitLimit(30.0, REQUEST_KEY))
    assert sender.take_newest() is None, "nothing was published yet"
    first = flat(1)
    sender.offer(first)
    assert controller.asked.wait(60)
    assert sender.take_newest() is first and controller.withdrawn == [1]
    controller.ends = True
    sender.offer(flat(2, first))
    sender.close(early=False)
    assert controller.versions == [1, 2], "nothing was asked while it was overwritten"
    host.close()


def test_the_only_copy_is_not_overwritten_while_it_is_sent() -> None:
    host, controller = BroadcastHost("127.0.0.1", 0), Controller()
    sender = WeightSender(
        host,
        lambda path, body: {} if path == "/withdraw" else controller.ask_once(path, body),
        WaitLimit(30.0, REQUEST_KEY),
    )
    first, at = flat(1), rendezvous(host, world=2)
    controller.rendezvous_bodies.append(at._replace(first_rank=0)._asdict())
    sender.offer(first)
    go_on, begun, taken = threading.Event(), threading.Event(), dict[str, torch.Tensor]()

    def slowly() -> None:
        for name, tensor in receive_tensors(at, 1, first.index):
            begun.set()
            assert go_on.wait(60)
            taken[name] = tensor.clone()

    def overwritten() -> None:
        flat(2, sender.take_newest())

    server = BackgroundCall(slowly)
    assert begun.wait(60)
    overwriting = BackgroundCall(overwritten)
    go_on.set()
    assert server.wait() is None
    controller.over.add(at.group)
    assert overwriting.wait() is None
    assert all(torch.equal(taken[name], tensor) for name, tensor in model(1).items())
    controller.ends = True
    sender.offer(flat(2))
    sender.close(early=False)
    host.close()


def test_a_copy_that_stays_on_the_gpu_is_published_with_checksums_and_its_memory_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, made = StandInGpu(monkeypatch), list[Any]()
    monkeypatch.setenv(KEEPS_COPY_ON_GPU, "1")
    monkeypatch.setattr(collective, "gpu_ids", lambda device: ["GPU-0"])
    on_gpu = SimpleNamespace(world=SimpleNamespace(is_first=True, device=torch.device("cuda", 0)), adapter=None)
    controller = Controller()
    transport: Any = open_transport(run_of(), on_gpu, controller, owned)  # type: ignore[arg-type]
    plain = transport._sender.offer

    def offer(flat: Any) -> None:
        made.append(flat)
        plain(flat)

    monkeypatch.setattr(transport._sender, "offer", offer)
    for version in (1, 2):
        index = parse_index(transport.publish(version, gpu.put(model(version)).items(), PROBE)()["index"], "index")
        assert all(info.has_checksum_only for info in index.tensors)
    assert "copied on the GPU" in transport.reason
    first, second = ([content.data_ptr() for content in flat.contents if len(content)] for flat in made)
    assert first == second
    transport.close(early=True)
