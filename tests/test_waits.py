"""Every wait has a limit: those in the source that have none of their own are listed here, each with the reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waits import unlimited_waits

pytestmark = pytest.mark.xdist_group("sources")

ROOT = Path(__file__).resolve().parents[1]
ROLLOUT, EPISODES, REWARDS = "areal_like/rollout", "areal_like/rollout/episodes", "areal_like/rollout/episodes/rewards"
SERVING, TRAINING, ENGINES = "areal_like/serving", "areal_like/training", "areal_like/serving/engines"

EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "idle until there is work or the end, which its other end or its owner tells it; it computes nothing meanwhile": (
        "areal_like/data/verifiers/host/service.py _serve: reader.readline",
        "areal_like/data/verifiers/host/taskset.py TasksetEnvironment._hold_open: self._is_over.wait",
        "areal_like/observe/trackers/writer_thread.py TrackerThread._next: self._changed.wait_for",
        "areal_like/rollout/controller/controller.py Controller._until_over: self.changed.wait",
        "areal_like/rollout/controller/controller.py Controller.run_until_over: asyncio.wait",
        "areal_like/rollout/controller/servers.py Servers._keep_up_to_date: self.changed.wait",
        f"{ROLLOUT}/controller/weight_broadcast.py WeightBroadcast._wait_for_servers: self._servers.changed.wait",
        f"{EPISODES}/worker.py EpisodeWorker._wait_for_slot: self._slot_free.wait",
        f"{EPISODES}/worker.py EpisodeWorker._wait_for_slot: while len(self._running) >= self._max_in_flight",
        f"{EPISODES}/worker.py EpisodeWorker.work: asyncio.wait",
        f"{EPISODES}/verifiers/seat.py EnvironmentSeat._read: reader.readline",
        f"{EPISODES}/text_environments/process.py EnvironmentProcess._printed: self._process.stderr.read",
        f"{REWARDS}/processes/bounded_output.py BoundedOutput._read: os.read",
        f"{REWARDS}/processes/reward_template.py main: control.recv",
        f"{REWARDS}/processes/reward_template.py _Template.serve: socket.recv_fds",
        f"{REWARDS}/processes/reward_worker.py _answer_concurrently: reader.readline",
        f"{REWARDS}/score_client.py ScoreClient._run: self._has_texts.wait",
        f"{ENGINES}/embedded/engine_thread.py EngineThread._iterate: self._changed.wait",
        f"{SERVING}/main.py ServerProcess._until_sigterm: asyncio.wait",
        f"{SERVING}/main.py ServerProcess._until_sigterm: terminated.wait",
        f"{SERVING}/public_proxy.py StreamRelay._write: self._parts.get",
        f"{SERVING}/reward_model/__main__.py main.serve_until_ended: ends.wait",
        f"{SERVING}/server.py InferenceServer.until_ended: asyncio.wait",
        f"{TRAINING}/transports/sender.py WeightSender._turn: self._changed.wait",
        "areal_like/weights/group_server.py GroupServer._serve: selector.select",
        f"{TRAINING}/held_state.py HeldState._follow: self._stop.arrived.wait",
    ),
    "a thread of this process ends it when it has killed all that it has started": (
        "launcher/supervisor/launcher_pulse.py LauncherPulse.hold: while self.ends",
    ),
    "it watches, or shows that it works, as long as what it is for: nobody waits for its end": (
        "areal_like/process/loop_watch.py LoopWatch._beat: while True",
        "areal_like/rollout/controller/hearing.py hear: while True",
        f"{EPISODES}/agents/command.py _end_if_stopped: while found < CHECKS",
        f"{ENGINES}/engine_pulse.py _ask: while True",
        f"{ENGINES}/external/attach.py watch_engine: while missed < MAX_MISSED_ANSWERS",
        f"{ENGINES}/external/engine_process.py EngineProcess.ended: while (code := self._keeper.exit_code()) is None",
        f"{SERVING}/forwarding.py ForwardingServer.wait_until_gone: while missed < MAX_MISSED_ANSWERS",
        "areal_like/weights/gloo_transfer.py _keep_until_done.until_it_ends: while not work.is_completed()",
    ),
    "the limit is with those that wait for it": (
        f"{EPISODES}/text_environments/process.py EnvironmentProcess.ended: self._process.wait",
        "areal_like/rollout/controller/change_signal.py ChangeSignal.wait: self._event.wait",
    ),
    "a child of this process that others watch and kill: the guardian (watchdog.launcher_s), its keeper, or at the "
    "deadline of a reward (reward.timeout_s)": (
        "areal_like/data/tasks/scorer_server.py _in_fork: os.read",
        "areal_like/data/tasks/scorer_server.py _in_fork: os.waitpid",
        "areal_like/process/keeper.py _wait_until_ended: signal.sigwait",
        f"{REWARDS}/code/print_cases.py main: subprocess.run",
        f"{REWARDS}/processes/reward_template.py main: os.waitpid",
        "launcher/supervisor/guardian.py run_guarded: os.waitid",
        "launcher/supervisor/guardian.py run_guarded: os.waitpid",
        "launcher/supervisor/guardian.py _run_launcher: watcher.join",
    ),
    "the user waits for it, sees its output and may interrupt it": (
        "areal_like/api.py run_command: process.wait",
        "areal_like/api.py run_command: reader.join",
        "areal_like/models/smollm2/prepare.py _downloaded: subprocess.run",
        "areal_like/models/smollm2/prepare.py _locked: fcntl.flock",
        f"{REWARDS}/bench.py _score_answers.score: async with places",
        "launcher/runs/fetch.py _fetch: subprocess.run",
    ),
    "a part of a lease, which the controller ends past rollout.request_timeout and reward.timeout_s; an agent has "
    "agent.timeout_s besides, a tool and a reward their own limits": (
        "areal_like/data/verifiers/host/service.py EnvironmentService._rows: self._writer.drain",
        "areal_like/data/verifiers/host/classic.py ClassicEnvironment.play.play_one: async with places",
        "areal_like/data/verifiers/host/taskset.py TasksetEnvironment._serve: asyncio.wait",
        "areal_like/data/verifiers/host/taskset.py TasksetEnvironment._serve: self._is_up.wait",
        "areal_like/data/verifiers/host/taskset.py TasksetEnvironment.play.play_one: async with places",
        f"{EPISODES}/agents/command.py CommandAgent.run: process.wait",
        f"{EPISODES}/agents/command.py _tail: stream.read",
        f"{EPISODES}/agents/command.py _write: stdin.drain",
        f"{EPISODES}/agents/function.py FunctionAgent.run: await done",
        f"{EPISODES}/api/chat_client.py ChatClient._answer: async with self._turns",
        f"{EPISODES}/gateway/gateway.py Gateway.open: async with self._starting",
        f"{EPISODES}/text_environments/pool.py EnvironmentPools.instance: async with pool.free",
        f"{EPISODES}/tools/base.py Tool._in_thread: await done",
        f"{EPISODES}/workflows/agent.py Agent._play: async with self._free",
        f"{EPISODES}/workflows/verifiers.py VerifiersEnvironment.run: async with self._has_room",
        f"{EPISODES}/workflows/verifiers.py VerifiersEnvironment.run: self._has_room.wait_for",
        f"{REWARDS}/deadline.py waiting: deadline.wait",
        f"{REWARDS}/deadline.py turn: places.acquire",
        f"{REWARDS}/judge.py JudgeReward._ask: aiohttp.ClientTimeout",
        f"{REWARDS}/outcomes.py rewards_of: asyncio.wait",
        f"{REWARDS}/score_client.py ScoreClient._run: while True",
    ),
    "a part of a request to a server, which its caller ends after rollout.request_timeout; the watchdog sees an engine "
    "that makes no progress (watchdog.generating_s)": (
        f"{ENGINES}/embedded/async_engine.py AsyncLLMEngine.generate: await result",
        f"{ENGINES}/external/engine_workers.py EngineWorkers.results: while True",
        f"{ENGINES}/external/http_calls.py EngineClient.read: aiohttp.ClientTimeout",
        f"{SERVING}/forwarding.py ForwardingServer._forward: source.content.readany",
        f"{SERVING}/forwarding.py ForwardingServer._newest_attempt: async with self._lock",
        f"{SERVING}/generation.py Generation._finish: while answer.finish == ABORT",
        f"{SERVING}/generation.py Generation.aborts_sent: asyncio.wait",
        f"{SERVING}/pauser.py Pauser.pause: async with self._lock",
        f"{SERVING}/pauser.py Pauser.resume: async with self._lock",
        f"{SERVING}/pauser.py Pauser.resumed: async with self._lock",
        f"{SERVING}/public_proxy.py StreamRelay._read: async for source.content.iter_any()",
        f"{SERVING}/request_queue.py RequestQueue.drained: self._empty.wait",
        f"{SERVING}/request_queue.py RequestQueue.enter: await slot",
        f"{SERVING}/reward_model/server.py RewardModelServer.score: async with self._lock",
        f"{SERVING}/served_weights.py ServedWeights.verified: self._verified.wait",
        f"{SERVING}/updates.py WeightUpdater.commit: async with self._lock",
        f"{SERVING}/updates.py WeightUpdater.fingerprint: async with self._lock",
        f"{SERVING}/updates.py WeightUpdater.stage: async with self._lock",
        f"{SERVING}/updates.py WeightUpdater.update: async with self._lock",
    ),
    "each call sets the limit of its request, which covers the answer": (
        "areal_like/process/http.py HttpClient.__aenter__: aiohttp.ClientTimeout",
        "areal_like/process/http_body.py read_body: async for response.content.iter_any()",
        f"{EPISODES}/generation_client.py GenerationClient._stream: async for response.content.iter_any()",
    ),
    "each part that it waits for has a limit of its own": (
        f"{ENGINES}/external/start.py EngineLaunch._try: asyncio.wait",
        f"{SERVING}/public_proxy.py StreamRelay.finish: asyncio.wait",
        f"{REWARDS}/processes/reward_worker.py RewardWatch.end: self._output.drain",
        f"{ROLLOUT}/controller/weight_broadcast.py WeightBroadcast._stage: asyncio.wait",
        "areal_like/discovery/etcd.py EtcdNameStore.close: self._renewing.join",
        f"{TRAINING}/loop.py train: checkpoints.wait",
        f"{TRAINING}/loop.py train: publisher.wait",
        f"{TRAINING}/supervised.py train: checkpoints.wait",
        f"{TRAINING}/weight_publisher.py WeightPublisher.publish: self._background.wait",
        f"{TRAINING}/weight_publisher.py WeightPublisher.wait: self._background.wait",
        f"{TRAINING}/transports/sender.py WeightSender._send: watch.join",
        "areal_like/process/sandbox/sandbox.py Sandbox.run: wait_for",
        "launcher/supervisor/launch.py _Launch.run: self.observer.drain",
    ),
    "a group for weights: each of its waits ends at the timeout of its meeting (weights.broadcast.timeout_s)": (
        f"{ENGINES}/external/plugin/exchange.py ShareExchange.connect: group.join",
        f"{TRAINING}/transports/sender.py WeightSender._send: group.join",
        "areal_like/weights/receive.py _joined: group.join",
    ),
    "it is done already: the wait for it came before, with a limit": (
        "areal_like/process/sandbox/program.py wait_for: first.result",
        "areal_like/process/sandbox/program.py wait_for: program.result",
        "areal_like/process/sandbox/sandboxed_server.py SandboxedServer._read: program.result",
        f"{TRAINING}/background_publication.py BackgroundPublication.check: self._current.result",
        f"{TRAINING}/background_publication.py BackgroundPublication.wait: self._current.result",
        f"{TRAINING}/sharded_files.py load_into: reader.read_data().wait",
        f"{TRAINING}/sharded_files.py write_shards: writer.write_data().wait",
        "areal_like/weights/collective.py BroadcastGroup.wait_for_thread: made.result",
        "areal_like/weights/gloo_transfer.py GlooTransfer._wait_for: work.wait",
        "areal_like/weights/gloo_transfer.py _is_done: work.wait",
        "areal_like/weights/nccl_transfer.py NcclTransfer._wait_until_under_way: work.wait",
        "launcher/supervisor/rollback.py PendingRollback._failure_text: self.search.result",
        "launcher/supervisor/supervisor.py Supervisor._check_rollback: pending.search.result",
    ),
    "it does not block, or a selector or a timeout of the socket comes before it": (
        "areal_like/process/blocking_http.py _ProvenConnection._prove: self.sock.recv",
        "areal_like/process/sandbox/program.py SandboxedProgram._read_rest: os.read",
        "areal_like/process/sandbox/program.py SandboxedProgram.read: os.read",
        "areal_like/process/sandbox/sandboxed_server.py SandboxedServer._received: self._wire.recv",
        "areal_like/weights/group_server.py GroupServer._accept: self._listening.accept",
        "areal_like/weights/group_server.py GroupServer._receive: caller.connection.recv",
    ),
    "a collective of the trainer ranks: it fails after dist_timeout_s, the timeout of its process group; the watchdog "
    "finds the rank for which the others wait (watchdog.collective_s)": (
        f"{TRAINING}/muon.py _orthogonalize_across_ranks: dist.all_to_all_single",
        f"{TRAINING}/rank_vote.py RankVote.sum: dist.all_reduce",
        f"{TRAINING}/sharding.py _from_first: dist.broadcast",
        f"{TRAINING}/world.py World._reduce: dist.all_reduce",
        f"{TRAINING}/world.py World.barrier: dist.barrier",
        f"{TRAINING}/world.py World.first: dist.broadcast",
        f"{TRAINING}/world.py World.sum_tensor: dist.all_reduce",
    ),
    "a collective of the workers of vLLM or SGLang, within the limit of the call that began it": (
        "areal_like/weights/text_gather.py gather_texts: dist.all_gather",
    ),
    "work of this process in another thread of it: the watchdog limits the phase it is part of (watchdog.loading_s, "
    "step_s, saving_s, publishing_s, generating_s)": (
        "areal_like/data/sampled_text.py SampledText.__call__: self._loading.result",
        "areal_like/process/checkpoint_files.py _in_threads: with ThreadPoolExecutor",
        f"{ENGINES}/embedded/engine_thread.py EngineThread.stop: self._thread.join",
        f"{ENGINES}/vllm/plugin/packed_layers.py WeightPacker.__exit__: self._thread.shutdown",
        f"{ENGINES}/vllm/plugin/packed_layers.py WeightPacker.packed: job.result",
        f"{TRAINING}/held_state.py HeldState._release: self._changed.wait_for",
        f"{TRAINING}/supervised_data.py _result: made.result",
    ),
    "copies between GPU and host on a stream of this process; no other process takes part": (
        f"{TRAINING}/engine_snapshot.py EngineSnapshot.of: memory.wait",
        f"{TRAINING}/offload.py step_from_host: memory.wait",
        f"{TRAINING}/offload.py to_host: memory.wait",
    ),
    "writes a file in a thread; a process that a dead disk keeps from ending is killed by the launcher": (
        f"{REWARDS}/judge_record.py JudgeRecord.close: self._thread.shutdown",
        f"{ROLLOUT}/rollout_files.py RolloutFiles._write: async with self._lock",
        f"{ROLLOUT}/rollout_files.py RolloutFiles.written: async with self._lock",
    ),
    "an exclusive holder removes an abandoned folder and ends, or lets go at once": (
        "areal_like/process/run_memory.py lock_folder: fcntl.flock",
    ),
}
"""Reason -> places: file, function and call."""


def sources() -> Iterator[tuple[str, str]]:
    for root in ("areal_like", "launcher"):
        for file in sorted((ROOT / root).rglob("*.py")):
            yield str(file.relative_to(ROOT)), file.read_text()


def test_every_wait_has_a_limit_or_a_reason_for_none():
    found = {wait.place: wait.line for path, source in sources() for wait in unlimited_waits(path, source)}
    listed = [place for places in EXCEPTIONS.values() for place in places]
    missing = [f"{place} (line {line})" for place, line in found.items() if place not in listed]
    assert not missing, f"waits without a limit: give them one (NamedWait, timeout=), or a reason here: {missing}"
    stale = [place for place in listed if place not in found]
    assert not stale, f"these have a limit now, or are gone: {stale}"
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize(
    ("without", "limited"),
    [
        ("thread.join()", "thread.join(5)"),
        ("process.wait()", "process.wait(timeout=5)"),
        ("process.wait(timeout=None)", "process.wait(5)"),
        ("process.communicate(b'')", "process.communicate(b'', timeout=5)"),
        ("search.wait(lambda text: print(text))", "search.wait(5, lambda text: print(text))"),
        ("future.result()", "future.result(5)"),
        ("lock.acquire()", "lock.acquire(timeout=5)"),
        ("work = queue.Queue()\nwork.get()", "work = queue.Queue()\nwork.get(timeout=5)"),
        ("self.changed.wait_for(is_done)", "self.changed.wait_for(is_done, 5)"),
        ("changed = threading.Condition()\nwith changed:\n    changed.wait()", "with changed:\n    changed.wait(5)"),
        (
            "lock = threading.Lock()\nwith lock:\n    thread.join(5)",
            "lock = threading.Lock()\nwith lock:\n    count += 1",
        ),
        ("fcntl.flock(file, fcntl.LOCK_EX)", "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
        ("os.waitpid(pid, 0)", "os.waitpid(pid, os.WNOHANG)"),
        (
            "os.read(pipe, 4096)",
            "def read():\n    if select.select([pipe], [], [], 5)[0]:\n        os.read(pipe, 4096)",
        ),
        ("select.select([pipe], [], [])", "select.select([pipe], [], [], 5)"),
        ("selector.select()", "selector.select(5)"),
        ("sock.recv(4096)", "values.recv(4096)"),
        ("socket.recv_fds(sock, 4096, 1)", "def read():\n    sock.settimeout(5)\n    socket.recv_fds(sock, 4096, 1)"),
        ("conn.recv()", "def read():\n    if conn.poll(5):\n        conn.recv()"),
        ("signal.sigwait({signal.SIGCHLD})", "signal.sigtimedwait({signal.SIGCHLD}, 5)"),
        ("concurrent.futures.wait(running)", "concurrent.futures.wait(running, timeout=5)"),
        ("wait(running)", "wait(running, 5)"),
        ("multiprocessing.connection.wait(pipes)", "multiprocessing.connection.wait(pipes, 5)"),
        ("def work(queue):\n    queue.get()", "def work(queue):\n    queue.get(timeout=5)"),
        ("def work(todo: queue.Queue[int]):\n    todo.get()", "def work(todo: dict[int, int]):\n    todo.get(5)"),
        ("def work(todo: 'asyncio.Queue'):\n    todo.get()", "settings.get()"),
        ("poller.poll()", "poller.poll(5000)"),
        ("waits = select.epoll()\nwaits.poll()", "process.poll()"),
        ("lock.acquire(True)", "lock.acquire(True, 5)"),
        ("lock.acquire(blocking=True)", "lock.acquire(False)"),
        ("subprocess.run(['rm', path])", "subprocess.run(['rm', path], timeout=5)"),
        ("urllib.request.urlopen(url)", "urllib.request.urlopen(url, timeout=5)"),
        ("http.client.HTTPConnection(host)", "http.client.HTTPConnection(host, timeout=5)"),
        ("aiohttp.ClientTimeout(total=None)", "aiohttp.ClientTimeout(total=5)"),
        ("dist.all_reduce(total)", "dist.init_process_group('gloo', timeout=limit)"),
        ("dist.new_group(ranks)", "dist.new_group(ranks, timeout=limit)"),
        ("with ThreadPoolExecutor(2) as pool:\n    pass", "pool = ThreadPoolExecutor(2)\npool.shutdown(wait=False)"),
        ("for line in process.stdout:\n    pass", "for line in lines:\n    pass"),
        (
            "def end(limit_s: float | None):\n    thread.join(limit_s)",
            "def end(limit_s: float):\n    thread.join(limit_s)",
        ),
        (
            "def end(limit_s: Optional[float]):\n    process.wait(timeout=limit_s)",
            "def end(left: int | None, limit_s: float):\n    process.wait(timeout=limit_s)",
        ),
        (
            "def end():\n    limit_s = None\n    thread.join(limit_s)",
            "def end():\n    limit_s = 5\n    thread.join(limit_s)",
        ),
        (
            "def end():\n    alive, limit_s = [], None\n    thread.join(limit_s)",
            "def end():\n    alive, limit_s = None, 5\n    thread.join(limit_s)",
        ),
        (
            "def end():\n    limit_s = None if left is None else 5\n    thread.join(limit_s)",
            "def end():\n    limit_s = 5 if left is None else 9\n    thread.join(limit_s)",
        ),
        ("thread.join(None if ends is None else 5)", "thread.join(5 if ends is None else 9)"),
        (
            "while True:\n    time.sleep(1)",
            "while True:\n    if time.monotonic() > ends:\n        break\n    time.sleep(1)",
        ),
        ("while True:\n    time.sleep(1)", "while True:\n    waiting.check()\n    time.sleep(1)"),
        ("while self.check(key):\n    time.sleep(1)", "while time.monotonic() < ends:\n    time.sleep(1)"),
        (
            "while not is_done():\n    now = time.monotonic()\n    time.sleep(1)",
            "while not is_done():\n    waited_s = time.monotonic() - began\n    assert waited_s < 5\n    time.sleep(1)",
        ),
        ("while is_alive():\n    sleep(1)", "while todo:\n    todo.pop()"),
    ],
)
def test_waits_without_a_limit_are_found(without, limited):
    assert unlimited_waits("here.py", without)
    assert not unlimited_waits("here.py", limited)


@pytest.mark.parametrize(
    "wait",
    [
        "await event.wait()",
        "await asyncio.wait([task])",
        "await queue.get()",
        "await done",
        "await process.wait()",
        "await process.communicate()",
        "await writer.drain()",
        "await reader.readline()",
        "await lock.acquire()",
        "async with lock:\n        pass",
    ],
)
def test_a_wait_of_a_coroutine_is_found_unless_a_timeout_is_around_it(wait):
    kinds = "queue, lock = asyncio.Queue(), asyncio.Lock()\n"
    body = f"async def work(done):\n    done = loop.create_future()\n    {wait}\n"
    assert [each.place.rpartition(":")[0] for each in unlimited_waits("a.py", kinds + body)] == ["a.py work"]
    inner = wait.replace("\n", "\n    ")
    start = "async def work():\n    done = loop.create_future()\n    async with asyncio.timeout(5):\n"
    around = f"{start}        {inner}\n"
    assert not unlimited_waits("a.py", kinds + around)
    if wait.startswith("await "):
        within = f"async def work(done):\n    await asyncio.wait_for({wait.removeprefix('await ')}, 5)\n"
        assert not unlimited_waits("a.py", kinds + within)


@pytest.mark.parametrize("wait", ["await event.wait()", "await asyncio.sleep(1)"])
def test_a_timeout_that_may_be_none_is_no_limit(wait):
    body = f"        async with asyncio.timeout(limit_s):\n            while not is_done():\n                {wait}\n"
    for kind, expected in (("float | None", 1), ("float", 0)):
        source = f"class Work:\n    async def end(self, limit_s: {kind}):\n{body}"
        assert len(unlimited_waits("a.py", source)) == expected


def test_a_place_is_named_by_file_function_and_call():
    source = "class Pool:\n    def close(self):\n        self._thread.join()\n"
    assert unlimited_waits("pool.py", source)[0].place == "pool.py Pool.close: self._thread.join"
