"""A simulation around the rollout loop: servers, workers, a trainer, and a manual clock."""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from areal_like.config.load import load
from areal_like.data.row_table import InspectedRow, RowTable
from areal_like.process.frames import Frame, pack, unpack
from areal_like.rollout.audit import Audit
from areal_like.rollout.curriculum.curriculum import Curriculum
from areal_like.rollout.evaluation.evaluated_rows import EvaluatedRows
from areal_like.rollout.groups import Lease, Result
from areal_like.rollout.loop import RolloutLoop
from areal_like.rollout.server_pool import ServerPool
from areal_like.rollout.settings import RolloutSettings
from areal_like.rollout.snapshot import restore, snapshot

ROOT = Path(__file__).parents[2]
DIGEST = "d1g357"


def settings(**changes: Any) -> RolloutSettings:
    usual = RolloutSettings(
        seed=1,
        sampling_seed=1,
        batch_size=4,
        n_samples=2,
        synchronous=False,
        max_staleness=1,
        max_concurrent=6,
        max_pending=100,
        request_retries=1,
        lease_limit_s=100.0,
        num_servers=1,
        schedule_policy="round_robin",
        dynamic_sampling=False,
        refill=True,
        oversampling_factor=1.0,
        sampling={"temperature": 1.0, "max_new_tokens": 10},
        total_epochs=2,
    )
    changed = replace(usual, **changes)
    return replace(changed, max_staleness=0) if changed.synchronous else changed


def evaluated(**changes: Any) -> EvaluatedRows:
    """Rows of `valid_dataset`, or with a `name` of a benchmark; `clock` gives their interval."""
    sampling = {"temperature": 1.0, "max_new_tokens": 10, "greedy": True}
    usual = EvaluatedRows(clock=clock(freq_steps=1), concurrent=4, sampling=sampling)
    return replace(usual, **changes)


@cache
def grpo(*overrides: str) -> Any:
    """The shipped experiment, with a fixed number of servers."""
    return load(ROOT / "experiments" / "grpo.yaml", ["rollout.backend=embedded", *overrides]).config


def clock(**frequencies: int | None) -> Any:
    """Frequencies of an evaluator with only these set."""
    usual = {"freq_steps": None, "freq_epochs": None, "freq_secs": None}
    return replace(grpo().evaluator, **{**usual, **frequencies})


def facts(
    version: int, rewards: Sequence[float | None], newest: int | None = None, generated: int = 3
) -> list[dict[str, Any]]:
    return [
        {
            "reward": reward,
            "rewards": {} if reward is None else {"part": reward, "score": reward},
            "finish": "stop",
            "length": 5 + generated,
            "generated": generated,
            "loss_tokens": 0 if reward is None else generated,
            "version_min": version,
            "version_max": version if newest is None else newest,
            "metrics": {},
            "prompt_hash": "abc",
        }
        for reward in rewards
    ]


class World:
    """One run, over all its attempts. `events` is its whole ledger."""

    def __init__(
        self,
        settings: RolloutSettings,
        rows: int = 10,
        valid_rows: int = 0,
        benchmark_rows: int = 0,
        too_long: Container[int] = (),
        curriculum: Callable[[], Curriculum | None] = lambda: None,
    ) -> None:
        self.settings, self.rows, self.too_long, self.curriculum = settings, rows, too_long, curriculum
        self.evaluation_rows = {each.split: benchmark_rows for each in settings.evaluated} | {"valid": valid_rows}
        self.time = 0.0
        self.events: list[dict[str, Any]] = []
        self.book = Audit(settings.max_staleness)
        self.reports: list[tuple[int, dict[str, float]]] = []
        self.step_errors: list[str] = []
        self.scores: list[tuple[int, dict[str, float]]] = []
        self.checkpoint: bytes | None = None
        self.attempts = 0
        self.begin()

    def begin(self, digest: str = DIGEST, **more: Any) -> None:
        """A new attempt, from the last checkpoint."""
        self.attempts += 1
        frame = unpack(self.checkpoint) if self.checkpoint is not None else None
        step = frame.header["step"] if frame else 0
        num_training = self.settings.num_servers if self.settings.num_evaluators else None
        server_pool = ServerPool(self.settings.schedule_policy, self.settings.max_concurrent, num_training)
        tables = {split: RowTable(count) for split, count in self.evaluation_rows.items()}
        rows, curriculum = RowTable(self.rows), self.curriculum()
        self.loop = RolloutLoop(self.settings, server_pool, rows, tables, step, lambda: self.time, curriculum)
        if frame:
            restore(self.loop, frame.header, frame.blobs, digest, **more)
        elif self.attempts > 1:
            self.loop.record_event("recovered", step=0, next=0, again=[], ready=[], data_anew=False)
        self.published = step
        self.leases: dict[str, tuple[Lease, int]] = {}
        """Leases of the workers, with the version under which they started."""
        self.calls: Counter[str] = Counter()
        """For leases, by worker."""
        self.fetched: int | None = None
        for index in range(self.num_servers):
            self.server_comes(index)
        self.after()

    def after(self) -> None:
        """The controller's work after every call."""
        for event in self.loop.events:
            self.events.append(orjson.loads(orjson.dumps(event)))
            self.book.read(self.events[-1])
        self.reports += [(step, values) for step, values, _ in self.loop.reports]
        self.step_errors += [error for _, _, error in self.loop.reports]
        self.scores += self.loop.scores
        for records in (self.loop.events, self.loop.reports, self.loop.scores):
            records.clear()
        if self.loop.order.begin_abort():
            self.loop.order.aborted()

    # Servers.

    @property
    def num_servers(self) -> int:
        return self.settings.num_servers + self.settings.num_evaluators

    def server_comes(self, index: int) -> None:
        self.loop.server_pool.add(f"server/{index}", f"address-{self.attempts}-{self.time}-{index}")

    def load(self, index: int = 0) -> None:
        """The version published last, or the one that an evaluation holds. Servers for evaluations alone load no
        other."""
        pool = self.loop.server_pool
        server = pool.of(f"server/{index}").servers[f"server/{index}"]
        evaluates = pool.of(server.name) is pool.evaluators
        held = self.loop.evaluations.held_version if evaluates else None
        if held is not None or not (pool.has_evaluators and evaluates):
            version = self.published if held is None else min(held, self.published)
            pool.set_version(server.name, max(version, server.version))

    def load_all(self) -> None:
        for index in range(self.num_servers):
            if f"server/{index}" not in self.loop.server_pool.of(f"server/{index}").servers:
                self.server_comes(index)
            self.load(index)

    def server_dies(self, index: int = 0) -> None:
        if f"server/{index}" in self.loop.server_pool.of(f"server/{index}").servers:
            self.time += 1
            self.loop.server_gone(f"server/{index}")
            self.after()

    # Workers.

    def inspect(self, worker: str = "episodes/0") -> None:
        """All rows that the loop asks for. Rows of both datasets that are in `too_long` are too long."""
        while rows := self.loop.inspection.take(worker):
            self.loop.inspected(
                {name: [InspectedRow(row, 1000 + row, row in self.too_long) for row in rows[name]] for name in rows}
            )
        self.after()

    def report(self, worker: str = "episodes/0") -> bool:
        """The leases that it holds."""
        self.calls[worker] += 1
        held = [lease.id for lease, _ in self.leases.values() if lease.worker == worker]
        has_lost = self.loop.held(worker, self.calls[worker], held)
        self.after()
        return has_lost

    def lease(self, want: int = 100, worker: str = "episodes/0", inspects: bool = True) -> list[Lease]:
        self.report(worker)
        leases = self.loop.lease(worker, want)
        if inspects:
            self.inspect(worker)
            leases += self.loop.lease(worker, want - len(leases))
        for lease in leases:
            pool = self.loop.server_pool.of(lease.server)
            self.leases[lease.id] = (lease, pool.servers[lease.server].version)
        self.after()
        return leases

    def lose(self, want: int = 100, worker: str = "episodes/0") -> list[Lease]:
        """Leases whose answer does not arrive."""
        leases = self.lease(want, worker)
        for lease in leases:
            del self.leases[lease.id]
        return leases

    def finish(
        self,
        lease: Lease,
        status: str = "done",
        rewards: Sequence[float | None] | None = None,
        environment: str = "",
        **more: Any,
    ) -> None:
        lease, version = self.leases.pop(lease.id, (lease, 0))
        server = self.loop.server_pool.of(lease.server).servers.get(lease.server)
        version = more.pop("version", version)
        newest = max(version, server.version) if server else version
        given = [float(index) for index in range(lease.group.n)] if rewards is None else rewards
        samples = facts(version, given, newest) if status == "done" else []
        samples = [{**each, "env": environment} for each in samples] if environment else samples
        blob = lease.id.encode() if status == "done" else b""
        self.loop.finish(lease.worker, [Result(lease.id, status, samples, blob, **more)])
        self.after()

    def finish_all(self, **more: Any) -> None:
        for lease, _ in list(self.leases.values()):
            self.finish(lease, **more)

    def worker_restarts(self, worker: str = "episodes/0") -> None:
        self.leases = {name: held for name, held in self.leases.items() if held[0].worker != worker}
        self.calls.pop(worker, None)
        self.loop.worker_started(worker)
        self.after()

    # The trainer.

    @property
    def step(self) -> int:
        return self.loop.batches.done_steps

    def fetch(self, step: int | None = None) -> Any:
        batch = self.loop.batch(self.step if step is None else step, 0, 1)
        self.after()
        return batch

    def train(self) -> Any:
        """Trains on the next batch, if there is one, and publishes. Returns the batch."""
        batch = self.fetch()
        if batch is not None and not isinstance(batch, str):
            self.loop.done(batch.step)
            self.published = batch.step + 1
            self.after()
        return batch

    @property
    def saved(self) -> Frame:
        assert self.checkpoint is not None
        return unpack(self.checkpoint)

    def save(self) -> None:
        self.checkpoint = pack(*snapshot(self.loop, self.step, DIGEST))

    def run(self, until: int | None = None, turns: int = 400) -> list[list[int]]:
        """Runs to the end without failures. Returns the groups of each step."""
        steps = []
        for _ in range(turns):
            self.load_all()
            for worker in list(self.calls):
                self.report(worker)
            self.lease()
            self.finish_all()
            batch = self.train()
            if batch is not None and not isinstance(batch, str):
                steps.append([group.number for group in batch.groups])
            if isinstance(batch, str) or self.step == until:
                return steps
        raise AssertionError(f"no end after {turns} turns: {self.where()}")

    def where(self) -> str:
        loop = self.loop
        return (
            f"step {self.step} of {loop.length.total_steps}, published {self.published}, ready {sorted(loop.ready)}, "
            f"running {loop.gate.running}, accepted {loop.gate.accepted}, leases {len(loop.leases)}, {loop.failure}"
        )

    def problems(self) -> list[str]:
        return [*self.book.problems, *self.book.losses()]

    def counts(self) -> dict[str, int]:
        return self.book.counts()
