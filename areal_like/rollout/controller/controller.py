"""Controller: connects the rollout loop to workers, trainer and servers until the run is over.

It watches the servers, creates the loop when the first worker reports its data, and ends when the trainer has finished
and the last evaluation is done."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from areal_like.config.allocation.models import uses_api
from areal_like.config.problems import ConfigError
from areal_like.data.row_table import RowTable
from areal_like.discovery import NameStore
from areal_like.models import model_folder
from areal_like.process.errors import Failure, FinalFailure, HttpError
from areal_like.process.frames import unpack
from areal_like.process.http import HttpClient
from areal_like.process.identity import EPISODES, SERVER, Identity
from areal_like.process.patience import WaitLimit, answer_limit
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from areal_like.rollout.controller.change_signal import ChangeSignal
from areal_like.rollout.controller.publications import model_publication, read_publication
from areal_like.rollout.controller.records import Records
from areal_like.rollout.controller.servers import Servers
from areal_like.rollout.controller.weight_broadcast import WeightBroadcast
from areal_like.rollout.curriculum.curriculum import curriculum_for
from areal_like.rollout.curriculum.own_code import load_own_curriculum
from areal_like.rollout.lease_limit import LIMITS
from areal_like.rollout.loop import RolloutLoop
from areal_like.rollout.rollout_files import RolloutFiles
from areal_like.rollout.server_pool import ServerPool
from areal_like.rollout.settings import rollout_settings
from areal_like.rollout.snapshot import restore
from areal_like.weights.errors import BadWeights

STATE_FILE = "resume/controller.frame"
"""The controller's part of a checkpoint."""
PROBE_NOISE, PROBE_TOKENS = "probe_noise", "probe_tokens"
"""In its header: what `ProbeNoise` has measured, and its prompt."""
CHECK_INTERVAL_S = 1.0
WORKER_EXIT_S = 3.0
"""How long to wait until all workers know that the run is over."""

log = logging.getLogger(__name__)


class Controller:
    """Everything between the routes and the rollout loop, which does no input or output."""

    def __init__(self, run: Run, me: Identity, names: NameStore, http: HttpClient) -> None:
        self.run, self.me, self.start = run, me, run.start_point()
        self.settings = rollout_settings(run.config)
        self.only_evaluates = self.settings.max_steps == 0
        self._own = (None, []) if self.only_evaluates else load_own_curriculum(run, self.fail)
        num_servers, num_evaluators = self.settings.num_servers, self.settings.num_evaluators
        self.server_pool = ServerPool(
            self.settings.schedule_policy, self.settings.max_concurrent, num_servers if num_evaluators else None
        )
        self.loop: RolloutLoop | None = None
        """None until a worker has reported its data."""
        self.digest = ""
        self._benchmark_digests: dict[str, str] = {}
        self.valid_rows = 0
        self.probe_tokens: list[int] = []
        """The first tokens of the training rows, as they were at the start of the run: a chat template may contain the
        date. Empty if they have none."""
        self.changed = ChangeSignal()
        self.over = False
        """Workers may exit."""
        self.ended_workers: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._final_wait: NamedWait | None = None
        """For the last evaluation, once the trainer has finished."""
        self._stopping, self._rows_left = "", 0
        self._incarnations: dict[str, int] = {}
        self._records = Records(run, me)
        self.rollouts = RolloutFiles(run, self.start.step, self._spawn)
        noise, self._saved_tokens = self._saved_probe()
        self.servers = Servers(
            *(run.config, num_servers, names, http, self, self._spawn, noise), num_evaluators=num_evaluators
        )
        self.broadcast = WeightBroadcast(run.config, self.servers, self._spawn, self._is_over, me.attempt)

    async def run_until_over(self) -> None:
        """Raises the error that ends the run early."""
        if uses_api(self.run.config):
            self.server_pool.use_service(self.run.config.rollout.server_addresses[0])
        else:
            if self.only_evaluates:
                self.servers.publish(model_publication(model_folder(self.run.config.actor.path, self.run.cwd), 0))
            self._spawn(self.servers.watch())
            self._spawn(self.broadcast.run())
        self._spawn(self._check_timers())
        over = asyncio.create_task(self._until_over())
        await asyncio.wait([over, self._fault], return_when=asyncio.FIRST_COMPLETED)
        if self._fault.done():
            over.cancel()
            self._fault.result()
        await over

    async def _until_over(self) -> None:
        while not self._is_over():
            await self.changed.wait()
        await self.rollouts.written()
        self.broadcast.check_now()
        self.over = True
        self.changed.notify()
        await self.changed.wait_for(
            lambda: True if self.ended_workers >= set(self._incarnations) else None, WORKER_EXIT_S
        )

    def _is_over(self) -> bool:
        """A run that is stopped generates nothing more, so it does not wait for evaluations."""
        is_idle = self.loop is None or self.loop.evaluations.idle or bool(self._stopping)
        return self._final_wait is not None and is_idle

    async def _check_timers(self) -> None:
        """Checks deadlines."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if self.loop is not None:
                self._begin_saved(self.loop)
                self.loop.check_time()
                self.loop_changed()
            if self._final_wait is not None and not self.over:
                if self.loop is not None and self.loop.evaluations.rows_left != self._rows_left:
                    self._start_final_wait()  # there is progress: the timeout starts again
                self._final_wait.check()

    def _begin_saved(self, loop: RolloutLoop) -> None:
        """Evaluations of which an earlier start has saved answers."""
        try:
            while (evaluation := loop.evaluations.begin_saved()) is not None:
                loop.answers_added(evaluation)
        except ValueError as other_rows:
            loop.failure = str(other_rows)

    # Workers.

    def hello(self, worker: str, incarnation: int, datasets: dict[str, Any]) -> None:
        """A new incarnation of a worker has lost its leases. All workers must have the same data."""
        valid, benchmarks = datasets.get("valid"), datasets.get("benchmarks", {})
        digest = "/".join(part["digest"] for part in (datasets["train"], valid) if part is not None)
        evaluated = {split: part["digest"] for split, part in benchmarks.items()}
        if self.loop is None:
            self._benchmark_digests = evaluated
            rows = {split: part["rows"] for split, part in benchmarks.items()}
            self._start_loop(datasets["train"], valid, digest, rows)
        elif (digest, evaluated) != (self.digest, self._benchmark_digests):
            message = (
                f"train_dataset: {worker} has other data than the first worker; all workers must read the same files"
            )
            self.fail(Failure(message))
            raise HttpError(422, message)
        assert self.loop is not None
        if incarnation > self._incarnations.get(worker, 0):
            self._incarnations[worker] = incarnation
            self.loop.worker_started(worker)
            self.loop_changed()

    def _start_loop(
        self, train: dict[str, Any], valid: dict[str, Any] | None, digest: str, benchmark_rows: dict[str, int]
    ) -> None:
        try:
            self.valid_rows = 0 if valid is None else valid["rows"]
            self.probe_tokens = self._saved_tokens or train["probe_tokens"]
            tables = {split: RowTable(count) for split, count in {**benchmark_rows, "valid": self.valid_rows}.items()}
            rows, start = RowTable(train["rows"]), self.start.step
            curriculum = curriculum_for(self.run.config, train, *self._own)
            loop = RolloutLoop(self.settings, self.server_pool, rows, tables, start, curriculum=curriculum)
            loop.record_event("begun", steps=loop.length.total_steps, max_staleness=self.settings.max_staleness)
            self._restore(loop, digest)
            if self.only_evaluates:
                loop.evaluations.saved.update(
                    self._records.answers.saved(each.name for each in self.settings.evaluated)
                )
        except (ValueError, Failure, ConfigError) as problem:
            self.fail(Failure(str(problem)) if isinstance(problem, ValueError) else problem)
            raise HttpError(422, str(problem)) from problem
        loop.stopping = self._stopping
        self.loop, self.digest = loop, digest
        if self.only_evaluates:
            self._start_final_wait()
        log.info("%d rows, %d steps; starts after step %d", train["rows"], loop.length.total_steps, self.start.step)
        self.loop_changed()

    def _restore(self, loop: RolloutLoop, digest: str) -> None:
        checkpoint = self.start.checkpoint
        if checkpoint is None:
            if self.me.attempt > 1:
                loop.record_event("recovered", step=0, next=0, again=[], ready=[], data_anew=False)
            return
        path = checkpoint / STATE_FILE
        if not path.is_file():
            raise Failure(
                f"resume: {path} is missing, so the run cannot continue from {checkpoint}; choose another step"
            )
        frame = unpack(path.read_bytes())
        restore(loop, frame.header, frame.blobs, digest, self.run.skips("dataloader"), self.run.skips("curriculum"))

    def _saved_probe(self) -> tuple[dict[str, Any], list[int]]:
        """Its noise and tokens, before the loop is restored: servers may load weights before the first worker reports
        its data."""
        if self.start.checkpoint is None or not (path := self.start.checkpoint / STATE_FILE).is_file():
            return {}, []
        header = unpack(path.read_bytes()).header
        return header.get(PROBE_NOISE, {}), header.get(PROBE_TOKENS, [])

    # Trainer.

    async def publish(self, body: dict[str, Any]) -> list[int]:
        """Returns the older versions whose files are still needed."""
        try:
            publication = await asyncio.to_thread(read_publication, body)
        except OSError as fault:
            raise HttpError(400, f"folder: {fault.strerror or fault}") from fault
        except BadWeights as refusal:
            if body.get("transport") == "collective":  # only the body itself was read
                raise HttpError(400, str(refusal)) from refusal
            self.fail(Failure(f"weights v{body['version']} cannot be published: {refusal}"))
            raise HttpError(409, str(refusal)) from refusal
        self.servers.publish(publication)
        return [] if self.loop is None else self.loop.evaluations.awaited_versions

    def finished(self, early: bool) -> None:
        """The trainer has finished: due evaluations still run, unless the end is early."""
        if self.loop is not None and early:
            self.loop.evaluations.clear()
            self.loop_changed()
        self._start_final_wait()
        self.changed.notify()

    def _start_final_wait(self) -> None:
        """Longer than a row may take, and than a server that hangs is waited for."""
        limit = answer_limit(self.run.config, SERVER, EPISODES)
        if self.settings.lease_limit_s > limit.seconds:
            limit = WaitLimit(self.settings.lease_limit_s, LIMITS)
        self._rows_left = 0 if self.loop is None else self.loop.evaluations.rows_left
        self._final_wait = NamedWait("the last evaluation", *limit)

    # Servers.

    def server_added(self, name: str, address: str) -> None:
        self.server_pool.add(name, address)

    def has_server(self, address: str) -> bool:
        """Whether a server is registered at this address."""
        ready = (*self.server_pool.ready, *self.server_pool.evaluators.ready)
        return any(server.address == address for server in ready)

    def server_loaded(self, name: str, version: int) -> None:
        self.server_pool.set_version(name, version)
        self.changed.notify()

    def server_silent(self, name: str, seconds: float) -> None:
        self.server_pool.heard(name, seconds)

    def model_verified(self, digest: str) -> None:
        """A server was found to have the weights of the model that is evaluated."""
        self._records.answers.check_model(digest)

    def server_gone(self, name: str) -> None:
        if self.loop is None:
            self.server_pool.remove(name)
        else:
            self.loop.server_gone(name)
            self.loop_changed()

    # State.

    def loop_changed(self) -> None:
        """To be called after every call to the loop: writes its records and wakes up the waiting routes."""
        loop = self.loop
        assert loop is not None
        try:
            self._records.write(loop, self.servers.times.take)
        except Failure as taken_over:
            self.fail(taken_over)
        except OSError as fault:
            self._disk_failed(fault)
        if loop.failure:
            # Rows of an evaluation were retried already; another attempt would end in the same way.
            self.fail(FinalFailure(loop.failure) if self.only_evaluates else Failure(loop.failure))
        self.servers.hold(loop.evaluations.held_version)
        if loop.order.begin_abort():
            self._spawn(self._abort())
        self.changed.notify()

    async def sync_records(self) -> None:
        """In a thread: a disk takes its time."""
        try:
            await asyncio.to_thread(self._records.sync)
        except OSError as fault:
            self._disk_failed(fault)

    def _disk_failed(self, fault: OSError) -> None:
        """Not raised: the caller of a route is not at fault, and would be reported as the cause."""
        self.fail(Failure(f"cluster.fileroot: {self.run.directory}: {fault.strerror or fault}; make room there"))

    async def _abort(self) -> None:
        await self.servers.abort_all()
        assert self.loop is not None
        self.loop.order.aborted()
        self.changed.notify()

    def stop(self, why: str) -> None:
        """Stops gracefully: batches that one rank has fetched are given to all ranks, further ones are not formed."""
        log.info("no more batches: %s", why)
        self._stopping = why
        if self.loop is not None:
            self.loop.stopping = why
        self.changed.notify()

    def superseded(self, attempt: int) -> None:
        self.fail(Failure(f"the run is at attempt {attempt}: this controller of attempt {self.me.attempt} ends"))

    def fail(self, fault: BaseException) -> None:
        if not self._fault.done():
            self._fault.set_exception(fault)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Runs a task whose errors end the controller."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self.fail(fault)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._fault.cancel():
            self._fault.exception()  # marks it as retrieved: it was raised already, or another error was first
        self._records.close()
