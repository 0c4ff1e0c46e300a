"""Workers of one engine pass on their shares in a group of their own: processes, over gloo. One that does not answer
ends the update within the limit, and not the engine."""

import contextlib
import multiprocessing
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

from areal_like.serving.engines.external.plugin import exchange
from areal_like.serving.engines.external.plugin.exchange import ShareExchange
from areal_like.weights.errors import GroupBroken
from areal_like.weights.hash_shares import hash_share
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.rendezvous import Rendezvous
from tests.support.weights_group import flat, model

pytestmark = pytest.mark.timeout(300)
WORKERS, LIMIT_S, LONG_S = 3, 2.0, 120.0
CLEAN = multiprocessing.get_context("forkserver")
"""Its processes do not inherit a process group that another test has opened."""
CLEAN.set_forkserver_preload([__name__])
CPU = torch.device("cpu")


class Worker:
    """In its process: `says` and `hears` connect it with the test."""

    def __init__(self, rank: int, port: int, pipe: Connection) -> None:
        self.rank, self.pipe = rank, pipe
        torch.set_num_threads(1)
        at = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", at, timedelta(seconds=LONG_S), rank=rank, world_size=WORKERS)
        self.sent = KeptGroup()
        self.exchange = ShareExchange(CPU, self.sent)

    def connect(self, group: str = "g1.s", limit_s: float = LONG_S) -> None:
        self.exchange.connect(Rendezvous("127.0.0.1", 1, group, "gloo", 1, 4, limit_s), self.rank, WORKERS)

    def limit(self, limit_s: float) -> None:
        """Of the waits from now on."""
        group = self.exchange._group
        assert group is not None
        group.rendezvous = group.rendezvous._replace(timeout_s=limit_s)

    def has_all_of(self, version: int) -> bool:
        index, tensors = flat(version).index, model(version)
        mine = hash_share(index.tensors, self.rank, WORKERS)
        self.exchange.meet()
        kept = {name: tensors[name].contiguous() for name in mine}
        found = dict(self.exchange.tensors(index, kept))
        return found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)

    def engine_works(self) -> bool:
        """Its own process group, in which nothing is left."""
        one = torch.ones(1)
        dist.all_reduce(one)
        return int(one) == WORKERS


@contextlib.contextmanager
def running(work: Callable[[Worker], None]) -> Iterator[list[Connection]]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ours, processes = [], []
    for rank in range(WORKERS):
        here, there = CLEAN.Pipe()
        processes.append(CLEAN.Process(target=_main, args=(work, rank, port, there), daemon=True))
        processes[-1].start()
        ours.append(here)
    try:
        yield ours
    finally:
        for process in processes:
            process.kill()
            process.join()


def _main(work: Callable[[Worker], None], rank: int, port: int, pipe: Connection) -> None:
    try:
        work(Worker(rank, port, pipe))
    except BaseException as fault:
        pipe.send(f"{type(fault).__name__}: {fault}")
        pipe.poll(LONG_S)  # the first one has the store of all


def heard(pipe: Connection) -> Any:
    assert pipe.poll(LONG_S), "it hangs"
    return pipe.recv()


def passes_on_twice(worker: Worker) -> None:
    worker.connect()
    group = worker.exchange._group
    worker.pipe.send(worker.has_all_of(1))
    worker.exchange.connect(Rendezvous("127.0.0.1", 1, "g2.t", "gloo", 1, 4, LONG_S, "g1.s"), worker.rank, WORKERS)
    worker.pipe.send(worker.has_all_of(2) and worker.exchange._group is group and worker.engine_works())
    worker.connect("g3.u")
    worker.pipe.send(worker.has_all_of(3) and worker.exchange._group is not group)


def test_processes_pass_on_their_shares_in_one_group_for_all_versions() -> None:
    with running(passes_on_twice) as pipes:
        for _ in range(3):
            assert [heard(pipe) for pipe in pipes] == [True] * WORKERS


def one_comes_late(worker: Worker) -> None:
    worker.connect()
    worker.limit(LIMIT_S)
    if worker.rank == 2:
        worker.pipe.recv()
    try:
        worker.exchange.meet()
        worker.pipe.send("they met")
    except GroupBroken as broken:
        worker.pipe.send(str(broken))
    worker.pipe.send(worker.engine_works())
    worker.connect("g2.t")
    worker.pipe.send(worker.has_all_of(2))


def test_a_worker_that_does_not_answer_ends_the_update_and_not_the_engine() -> None:
    with running(one_comes_late) as pipes:
        reasons = [heard(pipe) for pipe in pipes[:2]]
        assert all("weights.broadcast.timeout_s: waited 2 s for worker 2 of the engine" in each for each in reasons)
        pipes[2].send("go on")
        assert "for worker 2 of the engine" in heard(pipes[2]), "nor does it apply anything when it comes"
        assert [heard(pipe) for pipe in pipes] == [True] * WORKERS
        assert [heard(pipe) for pipe in pipes] == [True] * WORKERS, "the next update has a new group"


def one_hangs_half_way(worker: Worker) -> None:
    worker.connect()
    worker.limit(LIMIT_S)
    if worker.rank == 2:
        exchange._content = lambda *_: worker.pipe.recv()
    worker.has_all_of(1)


def test_a_worker_that_hangs_half_way_is_named_within_the_limit() -> None:
    with running(one_hangs_half_way) as pipes:
        for pipe in pipes[:2]:
            reason = heard(pipe)
            assert reason.startswith("GroupBroken: ") and "waited 2 s for " in reason and " of worker " in reason
