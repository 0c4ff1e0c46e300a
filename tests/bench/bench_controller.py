"""CPU time of the controller per trajectory, with a mock server, mock workers and a mock trainer.

    python tests/bench/bench_controller.py [--trajectories 8192] [--in-flight 64 512] [--samples 8 1] [--output FILE]

The controller is a separate process, as in a run. Measured is its whole CPU time from the first lease to the last step:
leases, results, the ledger, batches, weight updates, metrics. It never fails because of a time.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.config.describe.yaml_text import to_yaml  # noqa: E402
from areal_like.config.load import load  # noqa: E402
from areal_like.discovery import announce, open_name_store, parse_entry  # noqa: E402
from areal_like.process.frames import pack  # noqa: E402
from areal_like.process.http import HttpClient, application, json_response, read_json, run_async, serve  # noqa: E402
from areal_like.process.identity import ATTEMPT, INCARNATION, PROCESS, TOKEN, CallGuard, Identity  # noqa: E402
from areal_like.process.run import Run, open_run  # noqa: E402
from areal_like.process.wait import NamedWait  # noqa: E402
from areal_like.rollout.trajectory import Trajectory, pack_group  # noqa: E402
from areal_like.weights.index import Index, write_index  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402

TOKENS, PROMPT = 256, 64
ROWS = 10_000
GENERATION_S = 0.05
"""Seconds of the mock server for a group."""
SECRET = "bench"
AIM_MS = 0.5


def make_run(folder: Path, groups_in_flight: int, samples: int, steps: int) -> Run:
    overrides = [
        f"train_dataset.batch_size={max(1, groups_in_flight // 2)}",
        f"gconfig.n_samples={samples}",
        f"rollout.max_concurrent_rollouts={groups_in_flight}",
        *("rollout.max_head_offpolicyness=4", "rollout.backend=embedded", "evaluator.freq_steps=null"),
        *(f"total_train_steps={steps}", "total_train_epochs=100000", "trial_name=bench"),
        f"cluster.name_resolve.nfs_record_root={folder}/names",
    ]
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(load(ROOT / "experiments/grpo.yaml", overrides).values))
    facts = {"run_id": "bench", "experiment": "grpo", "folder": str(folder), "cwd": str(folder)}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "attempt.json").write_text(json.dumps({"attempt": 1, "step": 0, "checkpoint": None}))
    return open_run(folder)


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class MockParts:
    """Mock server, worker and trainer: all parts of a run except the controller."""

    def __init__(
        self, run: Run, address: str, trainer: HttpClient, worker: HttpClient, max_in_flight: int, steps: int
    ) -> None:
        self.run, self.address, self.trainer, self.worker = run, address, trainer, worker
        self.max_in_flight, self.steps = max_in_flight, steps
        self.version = 0
        self.results: list[tuple[dict[str, Any], bytes]] = []
        self.running = 0
        self.held: set[str] = set()
        self.finished = asyncio.Event()
        generator = np.random.default_rng(1)
        self.arrays = (
            generator.integers(0, 1000, TOKENS, dtype=np.int32),
            (np.arange(TOKENS) >= PROMPT).astype(np.uint8),
            np.where(np.arange(TOKENS) < PROMPT, 0.0, -1.0).astype(np.float32),
        )

    async def update(self, request: web.Request) -> web.Response:
        self.version = (await read_json(request))["version"]
        generated = {"tokens": 1, "busy_s": 0.0}
        return json_response({"version": self.version, "stall_s": 0.0, "load_s": 0.0, "generated": generated})

    async def work(self) -> None:
        """Acts as an episodes worker: sends all finished results in one request."""
        train = {"rows": ROWS, "digest": "bench", "probe_tokens": []}
        hello = {"worker": "episodes/0", "incarnation": 1, "datasets": {"train": train, "valid": None}}
        await self.worker.json("POST", self.address, "/hello", hello)
        handing_in = asyncio.create_task(self._hand_in())
        tasks: set[asyncio.Task[None]] = set()
        inspected: dict[str, Any] = {}
        calls = 0
        while True:
            while self.running >= self.max_in_flight and not inspected:
                await asyncio.sleep(0.002)
            want = self.max_in_flight - self.running
            calls += 1
            body = {"worker": "episodes/0", "want": want, "inspected": inspected, "call": calls, "held": [*self.held]}
            answer = await self.worker.json("POST", self.address, "/lease", body)
            if answer.get("end"):
                handing_in.cancel()
                return
            rows = answer["inspect"]
            inspected = {part: [[row, f"{row:016x}", False] for row in rows[part]] for part in rows}
            for lease in answer["leases"]:
                self.running += 1
                self.held.add(lease["id"])
                task = asyncio.create_task(self._generate(lease))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0.002)

    async def _generate(self, lease: dict[str, Any]) -> None:
        version = self.version
        await asyncio.sleep(GENERATION_S * (0.5 + (lease["group"] * 7919 % 100) / 100))
        ids, mask, logprobs = self.arrays
        versions = np.where(mask, version, -1).astype(np.int32)
        rewards = [float((lease["group"] + sample) % 2) for sample in range(lease["n"])]
        group = [Trajectory(ids, mask, logprobs, versions, reward, {"exact": reward}) for reward in rewards]
        facts, blob = pack_group(group)
        self.results.append(({"lease": lease["id"], "status": "done", "facts": facts, "timings": {}}, blob))
        self.running -= 1
        self.finished.set()

    async def _hand_in(self) -> None:
        while True:
            await self.finished.wait()
            self.finished.clear()
            results, self.results = self.results, []
            header = {"worker": "episodes/0", "results": [entry for entry, _ in results]}
            await self.worker.json("POST", self.address, "/finish", pack(header, [blob for _, blob in results]))
            self.held -= {entry["lease"] for entry, _ in results}

    async def train(self) -> int:
        """Returns the number of trajectories that were trained on."""
        count = 0
        while not (await self.trainer.json("GET", self.address, "/facts"))["ready"]:
            await asyncio.sleep(0.01)
        for step in range(self.steps):
            await self.publish(step)
            while "wait" in (frame := await self._batch(step)).header:
                pass
            count += len(frame.header["samples"])
            await self.trainer.json("POST", self.address, "/done", {"step": step})
        return count

    async def _batch(self, step: int) -> Any:
        return await self.trainer.frame("POST", self.address, "/batch", {"step": step, "rank": 0, "world": 1})

    async def publish(self, version: int) -> None:
        folder = self.run.directory / f"published/v{version:06d}"
        folder.mkdir(parents=True)
        write_index(folder, Index(version, "bench", [], None))
        body = {"version": version, "folder": str(folder), "bytes": 0}
        await self.trainer.json("POST", self.address, "/publish", body)


async def measure(in_flight: int, samples: int, trajectories: int, folder: Path) -> dict[str, Any]:
    groups = max(1, in_flight // samples)
    steps = max(2, trajectories // (max(1, groups // 2) * samples))
    run = make_run(folder, groups, samples, steps)
    environment = {**os.environ, PROCESS: "rollout/0", TOKEN: SECRET, ATTEMPT: "1", INCARNATION: "1"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "areal_like.rollout.controller", "--run-dir", str(folder)]
    controller = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(controller.wait)
        stack.callback(controller.send_signal, signal.SIGKILL)
        names = stack.enter_context(open_name_store(run, Identity("server", 0)))
        trainer = await stack.enter_async_context(HttpClient(Identity("trainer", 0), SECRET))
        worker = await stack.enter_async_context(HttpClient(Identity("episodes", 0), SECRET))
        waiting = NamedWait("the controller", 60.0, "bench")
        address = parse_entry(await asyncio.to_thread(names.wait, "rollout/0", waiting)).address
        mocks = MockParts(run, address, trainer, worker, groups, steps)
        app = application(CallGuard(SECRET, 0))
        app.add_routes([web.post("/control/update_weights", mocks.update)])
        served = await serve(app, "127.0.0.1")
        stack.push_async_callback(served.close)
        announce(names, Identity("server", 0), served.address)
        began, before = time.perf_counter(), cpu_s(controller.pid)
        working = asyncio.create_task(mocks.work())
        count = await mocks.train()
        wall_s, used_s = time.perf_counter() - began, cpu_s(controller.pid) - before
        await trainer.json("POST", address, "/finished", {"step": steps, "early": False})
        await working
    return {
        "in_flight": in_flight,
        "samples_per_group": samples,
        "trajectories": count,
        "wall_s": wall_s,
        "controller_cpu_s": used_s,
        "trajectories_per_s": count / wall_s,
        "controller_cpu_ms_per_trajectory": 1000 * used_s / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=8192)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--samples", type=int, nargs="+", default=[8, 1], help="samples of a group")
    add_output(parser, "controller")
    arguments = parser.parse_args()
    load_before = os.getloadavg()
    rows, growth = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for samples in arguments.samples:
            costs = []
            for in_flight in arguments.in_flight:
                row = run_async(
                    measure(in_flight, samples, arguments.trajectories, Path(folder) / f"{samples}-{in_flight}")
                )
                rows.append(row)
                costs.append(row["controller_cpu_ms_per_trajectory"])
                cost, speed = f"{costs[-1]:.3f} ms of CPU per trajectory", f"{row['trajectories_per_s']:.0f}/s"
                print(f"{in_flight} in flight, in groups of {samples}: {cost}, {speed}")
            if costs[0]:  # a very short run uses less CPU time than the clock resolves
                growth[str(samples)] = costs[-1] / costs[0]
                print(f"in groups of {samples} it grows {growth[str(samples)]:.2f} times (aim: {AIM_MS} ms, and flat)")
    report = {
        "what": "CPU time of the controller for each trajectory, mock server and workers",
        "tokens_per_trajectory": TOKENS,
        "aim_ms": AIM_MS,
        "measured": rows,
        "growth": growth,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
    }
    write_report(report, arguments.output)


if __name__ == "__main__":
    main()
