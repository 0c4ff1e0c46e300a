"""Broadcast weights arrive bit-exact at all servers at once or not at all, and no process hangs."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from areal_like.weights import collective, gloo_transfer, group_server
from areal_like.weights.collective import BroadcastGroup, BroadcastHost
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.flat_buckets import FlatWeights
from areal_like.weights.group_member import MAX_LINE_BYTES, MEMBER, json_line, make_member_proof
from areal_like.weights.receive import receive_tensors
from areal_like.weights.rendezvous import Rendezvous
from tests.support.weights_group import BackgroundCall, Process, flat, join_group, model, rendezvous, send

pytestmark = pytest.mark.timeout(300)

SHORT_LIMIT_S = 60.0
"""Far below the limit of a group: what ends within it has not waited for that."""


@pytest.fixture
def host() -> Iterator[BroadcastHost]:
    found = BroadcastHost("127.0.0.1", 0)
    yield found
    found.close()


def received(at: Rendezvous, rank: int, weights: FlatWeights) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in receive_tensors(at, rank, weights.index)}


def test_a_broadcast_arrives_bit_exact_at_all_servers_at_once(host) -> None:
    before = dist.is_initialized()
    weights = flat()
    assert len(weights.contents) > 3
    at = rendezvous(host, world=4)
    servers = [BackgroundCall(partial(received, at, rank, weights)) for rank in (1, 2, 3)]
    send(host, at, weights.contents)
    for server in servers:
        found = server.wait()
        assert list(found) != [] and found.keys() == model().keys()
        for name, tensor in model().items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    assert dist.is_initialized() == before  # torch's own group is the trainer's, or the engine's


def test_one_rendezvous_serves_successive_groups(host) -> None:
    for version in (1, 2, 3):
        weights = flat(version)
        at = rendezvous(host, world=2, group=f"g{version}")
        server = BackgroundCall(partial(received, at, 1, weights))
        send(host, at, weights.contents)
        assert torch.equal(server.wait()["model.turned"], model(version)["model.turned"])


def test_a_bit_flipped_in_transfer_ends_the_group_for_all(host) -> None:
    weights = flat()
    name = "model.layers.1.mlp.up_proj.weight"
    number = next(place for place, bucket in enumerate(weights.index.buckets) if name in str(bucket.tensors))
    content = model()[name].view(torch.uint8).flatten()
    at_byte = bytes(weights.contents[number].numpy()).index(bytes(content.numpy()))
    weights.contents[number][at_byte + 5] ^= 1
    at = rendezvous(host, world=3)
    servers = [BackgroundCall(partial(received, at, rank, weights)) for rank in (1, 2)]
    # Servers refuse while the trainer has more to send.
    trainer = BackgroundCall(lambda: send(host, at, weights.contents * 50))
    ends = [server.wait(SHORT_LIMIT_S) for server in servers]
    refusals = [str(end) for end in ends if isinstance(end, BadWeights)]
    assert refusals and all(isinstance(end, BadWeights | GroupBroken) for end in ends)
    assert f"version 3 of the weights: tensor {name} (layer 1) is corrupted" in refusals[0]
    broken = trainer.wait(SHORT_LIMIT_S)
    assert isinstance(broken, GroupBroken)


def test_a_server_killed_in_a_transfer_ends_it_for_all_within_seconds(host) -> None:
    at = rendezvous(host, world=3)
    under_way = threading.Event()

    def weights() -> Iterator[torch.Tensor]:
        for number in range(1_000_000):
            if number == 100:
                under_way.set()
            yield torch.zeros(1_000_000, dtype=torch.uint8)

    dies, stays = (Process("receive", 3, host.port, rank) for rank in (1, 2))
    trainer = BackgroundCall(lambda: send(host, at, weights()))
    assert under_way.wait(SHORT_LIMIT_S)
    dies.kill()
    broken = trainer.wait(SHORT_LIMIT_S)
    assert isinstance(broken, GroupBroken), broken
    assert "of 2 of the servers" in str(broken) or "the trainer could not send" in str(broken)
    assert "group g: process 2 of 2 of the servers could not" in stays.last_output(SHORT_LIMIT_S)


def test_a_trainer_killed_in_a_transfer_ends_it_for_servers_within_seconds() -> None:
    trainer = Process("send", world=3)
    at = Rendezvous("127.0.0.1", trainer.port, "g", "gloo", 1, 3, 60.0)

    def take(rank: int) -> Any:
        buffer = torch.empty(1_000_000, dtype=torch.uint8)
        with join_group(at, rank) as group:
            while True:
                group.receive(buffer)

    servers = [BackgroundCall(partial(take, rank)) for rank in (1, 2)]
    trainer.until_met()
    trainer.kill()
    for server in servers:
        assert isinstance(server.wait(SHORT_LIMIT_S), GroupBroken)


def test_an_aborted_group_ends_members_in_every_state(host) -> None:
    comes, never = BackgroundCall(lambda: join_group(rendezvous(host, world=3), 1)), "server/1: refused"
    with host.open(rendezvous(host, world=3)) as group:
        trainer = BackgroundCall(group.join)
        time.sleep(0.3)
        group.abort(never)
        for end in (trainer.wait(SHORT_LIMIT_S), comes.wait(SHORT_LIMIT_S)):
            assert isinstance(end, GroupBroken)
            assert never in str(end)


def test_a_wait_past_its_limit_names_its_condition_and_key(host) -> None:
    with (
        host.open(rendezvous(host, world=2, timeout_s=0.3)) as group,
        pytest.raises(GroupBroken, match=r"weights\.broadcast\.timeout_s: waited 0 s for the servers to come"),
    ):
        group.join()


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_a_bucket_that_completes_at_the_end_of_a_poll_is_received(host, monkeypatch) -> None:
    monkeypatch.setattr(gloo_transfer, "POLL_S", 0.001)
    monkeypatch.setattr(collective, "CHECK_INTERVAL_S", 0.001)
    contents = [torch.full((4_000_000,), number % 100, dtype=torch.uint8) for number in range(400)]
    at = rendezvous(host, world=2)

    def take() -> list[int]:
        buffer, found = torch.empty(4_000_000, dtype=torch.uint8), []
        with join_group(at, 1) as group:
            for _ in contents:
                group.receive(buffer)
                found.append(int(buffer[-1]))
        return found

    server = BackgroundCall(take)
    send(host, at, contents)
    assert server.wait() == [number % 100 for number in range(400)]


def test_joining_a_closed_rendezvous_reports_a_broken_group() -> None:
    with pytest.raises(GroupBroken, match="group g: process 1 of 1 of the servers could not join"):
        join_group(Rendezvous("127.0.0.1", unused_port(), "g.s3cret", "gloo", 1, 2, 0.5), 1)


def test_a_member_waiting_in_vain_for_the_trainer_names_the_wait(host) -> None:
    at = rendezvous(host, world=2, group="g.s3cret", timeout_s=0.3)
    with pytest.raises(GroupBroken, match=r"weights\.broadcast\.timeout_s: waited 0\.3 s for the trainer") as broken:
        join_group(at, 1)
    assert "s3cret" not in str(broken.value)


def test_a_program_without_the_secret_cannot_join_a_group_or_learn_anything(host) -> None:
    """Titles can be guessed. Neither a stranger's word nor its end means anything to the group."""
    weights = flat()
    at = rendezvous(host, world=2, group="g.s3cret")
    unknown_client = socket.create_connection((host.host, host.port), timeout=SHORT_LIMIT_S)
    unknown_client.sendall(json_line({"title": "g", "nonce": "0"}))
    with host.open(at) as group, unknown_client.makefile("rb") as heard:
        shown = json.loads(heard.readline())
        assert set(shown) == {"nonce", "proof"} and "s3cret" not in str(shown)
        guess = make_member_proof("g", MEMBER, "0", shown["nonce"], "process 1 of 1 of the servers")
        unknown_client.sendall(json_line({"who": "process 1 of 1 of the servers", "proof": guess}))
        unknown_client.sendall(json_line({"do": "get", "key": "here"}))
        assert heard.readline() == b"", "its connection is closed"
        unknown_client.close()
        with pytest.raises(GroupBroken, match=r"does not know the secret|connection"):
            join_group(at._replace(group="g.guess3d"), 1)
        server = BackgroundCall(partial(received, at, 1, weights))
        group.join()
        for content in weights.contents:
            group.send(content)
    assert server.wait().keys() == model().keys()
    assert not host._lost_members


def test_an_impostor_of_the_trainer_gets_no_message() -> None:
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept_as_impostor() -> None:
            connection, _ = listening.accept()
            with connection:
                heard.extend(connection.recv(MAX_LINE_BYTES))
                connection.sendall(json_line({"nonce": "0" * 64, "proof": "0" * 64}))
                while part := connection.recv(MAX_LINE_BYTES):
                    heard.extend(part)

        impostor = BackgroundCall(accept_as_impostor)
        with pytest.raises(GroupBroken, match="does not know the secret of this group") as broken:
            join_group(Rendezvous("127.0.0.1", listening.getsockname()[1], "g.s3cret", "gloo", 1, 2, 30.0), 1)
        assert impostor.wait() is None
    assert b"s3cret" not in heard and heard.count(b"\n") == 1 and "s3cret" not in str(broken.value)


def test_an_impostor_of_a_member_gets_no_weights(host) -> None:
    at = rendezvous(host, world=2, group="g.s3cret")

    def join_as_impostor() -> None:
        with BroadcastGroup(at, 1) as impostor:
            impostor.secret = "g.guess3d"  # it took the place of a member and cannot prove its identity
            impostor.join()

    impostor = BackgroundCall(join_as_impostor)
    with host.open(at) as group, pytest.raises(GroupBroken, match="connection of member 1 leads to another program"):
        group.join()
    assert isinstance(impostor.wait(SHORT_LIMIT_S), GroupBroken)


NONSENSE = {
    "without end": b"x" * MAX_LINE_BYTES * 3,
    "deep": b"[" * 5000 + b"\n",
    "empty": b"{}\n",
    "no text": b"\xff\n",
    "half": b'{"title": "g"}\n',
}


@pytest.mark.parametrize("words", NONSENSE.values(), ids=NONSENSE)
def test_a_client_that_sends_garbage_is_dropped_and_others_are_served(host, words: bytes) -> None:
    with socket.create_connection((host.host, host.port), timeout=SHORT_LIMIT_S) as garbage_client:
        with contextlib.suppress(ConnectionError):
            garbage_client.sendall(words)
        with contextlib.suppress(ConnectionError):
            assert garbage_client.recv(1) == b""
    weights = flat()
    at = rendezvous(host, world=2)
    server = BackgroundCall(partial(received, at, 1, weights))
    send(host, at, weights.contents)
    assert server.wait().keys() == model().keys()


def test_silent_unknown_connections_never_displace_a_member(host, monkeypatch) -> None:
    monkeypatch.setattr(group_server, "MAX_UNPROVEN", 3)
    at = rendezvous(host, world=2)
    weights = flat()
    with host.open(at) as group, contextlib.ExitStack() as stack:
        server = BackgroundCall(partial(received, at, 1, weights))
        group.join()
        silent = [
            stack.enter_context(socket.create_connection((host.host, host.port), SHORT_LIMIT_S)) for _ in range(9)
        ]
        assert silent[0].recv(1) == b"", "the oldest made room"
        for content in weights.contents:
            group.send(content)
    assert server.wait().keys() == model().keys()


def test_the_host_listens_only_on_its_configured_address(host) -> None:
    with pytest.raises(ConnectionRefusedError):  # a socket on all addresses would accept here
        socket.create_connection(("127.0.0.2", host.port), timeout=60).close()
