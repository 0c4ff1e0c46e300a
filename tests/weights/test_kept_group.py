"""A group is kept for further transfers, and left as soon as a member is no longer in it."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from areal_like.weights.collective import BroadcastHost
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.flat_buckets import FlatWeights
from areal_like.weights.gloo_transfer import GlooTransfer
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.receive import receive_tensors
from areal_like.weights.rendezvous import Rendezvous
from tests.support.weights_group import BackgroundCall, flat, model, rendezvous

pytestmark = pytest.mark.timeout(300)


class Members:
    """The trainer and servers, which keep their group."""

    def __init__(self, count: int) -> None:
        self.host = BroadcastHost("127.0.0.1", 0)
        self.trainer = KeptGroup(host=self.host)
        self.servers = [KeptGroup() for _ in range(count)]
        self.number = 0

    def rendezvous(self, continues: str = "") -> Rendezvous:
        self.number += 1
        at = rendezvous(self.host, len(self.servers) + 1, f"g{self.number}.s3cret", timeout_s=60.0)
        return at._replace(continues=continues)

    def send(self, at: Rendezvous, weights: FlatWeights) -> None:
        with self.trainer.opened(at) as group:
            group.join()
            for content in weights.contents:
                group.send(content)
            group.finish()

    def transfer(self, version: int, at: Rendezvous) -> list[dict[str, Tensor]]:
        weights = flat(version)

        def received(rank: int, kept: KeptGroup) -> dict[str, Tensor]:
            tensors = receive_tensors(at, rank, weights.index, kept)
            return {name: tensor.clone() for name, tensor in tensors}

        calls = [
            BackgroundCall(lambda rank=rank, kept=kept: received(rank, kept))  # type: ignore[misc]
            for rank, kept in enumerate(self.servers, 1)
        ]
        self.send(at, weights)
        return [call.wait() for call in calls]


@pytest.fixture
def members() -> Iterator[Members]:
    found = Members(2)
    yield found
    for each in (found.trainer, *found.servers):
        each.leave()
    found.host.close()


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    ranks: list[int] = []
    plain = GlooTransfer.connect

    def connect(self: GlooTransfer) -> None:
        ranks.append(self._group.rank)
        plain(self)

    monkeypatch.setattr(GlooTransfer, "connect", connect)
    return ranks


def test_versions_are_sent_over_the_connections_of_the_first(members: Members, connects: list[int]) -> None:
    at = members.rendezvous()
    members.transfer(1, at)
    for version in (2, 3):
        received = members.transfer(version, members.rendezvous(continues=members.trainer.name))
        assert all(torch.equal(each["model.turned"], model(version)["model.turned"]) for each in received)
    assert sorted(connects) == [0, 1, 2] and members.trainer.name == at.group


def test_a_group_that_is_not_continued_is_left_by_all(members: Members, connects: list[int]) -> None:
    members.transfer(1, members.rendezvous())
    members.transfer(2, members.rendezvous())
    assert sorted(connects) == [0, 0, 1, 1, 2, 2] and members.trainer.name.startswith("g2.")


def test_a_process_that_is_not_in_the_continued_group_reports_it(members: Members) -> None:
    members.transfer(1, members.rendezvous())
    with pytest.raises(GroupBroken, match="no longer in the one that it continues"):
        next(receive_tensors(members.rendezvous(continues="g1.s3cret"), 1, flat().index))


def test_the_trainer_knows_when_a_member_has_left_its_group(members: Members) -> None:
    members.transfer(1, members.rendezvous())
    members.servers[1].leave()
    ended = BackgroundCall(lambda: [None for _ in iter(lambda: members.trainer.name, "")])
    assert isinstance(ended.wait(), list)


def test_a_transfer_that_failed_is_not_continued(members: Members) -> None:
    weights = flat()
    weights.contents[0][0] ^= 1
    at = members.rendezvous()
    calls = [
        BackgroundCall(lambda rank=rank, kept=kept: list(receive_tensors(at, rank, weights.index, kept)))  # type: ignore[misc]
        for rank, kept in enumerate(members.servers, 1)
    ]
    with contextlib.suppress(GroupBroken):
        members.send(at, weights)
    ends = [call.wait() for call in calls]
    assert any(isinstance(end, BadWeights) for end in ends)
    assert all(isinstance(end, BadWeights | GroupBroken) for end in ends)
    assert all(not server.name for server in members.servers)
    with pytest.raises(GroupBroken, match=r"left it|is gone|no longer"):
        members.send(members.rendezvous(continues=at.group), weights)


def test_a_server_that_keeps_no_group_is_connected_anew(members: Members) -> None:
    """As servers of other engines may."""
    weights, at = flat(1), members.rendezvous()._replace(world=2)
    call = BackgroundCall(lambda: sorted(name for name, _ in receive_tensors(at, 1, weights.index)))
    members.send(at, weights)
    assert call.wait() == sorted(model(1))
    ended = BackgroundCall(lambda: [None for _ in iter(lambda: members.trainer.name, "")])
    assert isinstance(ended.wait(), list)
