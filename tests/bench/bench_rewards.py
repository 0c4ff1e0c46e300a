"""Throughput of the pool of rewards when some answers hang, side by side with one where none does.

    python tests/bench/bench_rewards.py [--answers 1000] [--rounds 2] [--processes 2] [--output FILE]

Each answer takes 20 ms, and 1 of 100 hangs: it waits for ever or, in a second comparison without an aim, computes for
ever, which takes the CPU from the others until its priority is lowered. Rounds with and without hanging answers take
turns, each until all others are scored; those that hang are retried and wait for their deadlines meanwhile. It never
fails because of a time.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.process.http import run_async  # noqa: E402
from areal_like.rollout.episodes.rewards import RewardError, RewardSpec  # noqa: E402
from areal_like.rollout.episodes.rewards.limits import RewardLimits  # noqa: E402
from areal_like.rollout.episodes.rewards.pool import RewardPool  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402

REWARD_S, HANGING, TIMEOUT_S, RETRIES = 0.02, 0.01, 5.0, 3
LIMITS = RewardLimits(8.0, None, 256, 1.0)
AIM = 0.95
REWARDS = f"""
import time

def waits(prompt, completion):
    time.sleep(3600 if completion == "hangs" else {REWARD_S})
    return 1.0

def computes(prompt, completion):
    until = time.thread_time() + (3600 if completion == "hangs" else {REWARD_S})
    while time.thread_time() < until:
        pass
    return 1.0
"""


async def measure(pool: RewardPool, answers: int, hanging: bool) -> float:
    """Rewards per second of the answers that do not hang."""

    async def score(completion: str) -> None:
        try:
            await pool.score({"prompt": ""}, [completion])
        except RewardError:
            assert completion == "hangs", "only these fail"

    every = round(1 / HANGING)
    names = ["hangs" if hanging and number % every == every // 2 else "x" for number in range(answers)]
    began = time.perf_counter()
    tasks = {name: [asyncio.create_task(score(each)) for each in names if each == name] for name in set(names)}
    await asyncio.gather(*tasks["x"])
    wall_s = time.perf_counter() - began
    for task in tasks.get("hangs", ()):
        task.cancel()
    return len(tasks["x"]) / wall_s


async def compare(kind: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    spec = RewardSpec(f"rewards.py:{kind}", {}, None, {}, str(folder), str(folder))
    pools = [RewardPool(spec, TIMEOUT_S, RETRIES, 60.0, arguments.processes, LIMITS) for _ in range(2)]
    rates: list[list[float]] = [[], []]
    try:
        for pool in pools:
            await pool.ready({"prompt": ""})
            await measure(pool, 50, hanging=False)
        for _ in range(arguments.rounds):
            for pool, hanging, measured in zip(pools, (False, True), rates, strict=True):
                measured.append(await measure(pool, arguments.answers, hanging))
        counts = vars(pools[1].counts)
    finally:
        for pool in pools:
            await pool.close()
    without, with_hanging = map(statistics.median, rates)
    ratio = with_hanging / without
    aim = f" (aim: {AIM:.0%})" if kind == "waits" else ""
    print(f"{kind}: {with_hanging:.1f} rewards/s with hanging ones, {without:.1f} without: {ratio:.1%}{aim}")
    return {"kind": kind, "without_per_s": rates[0], "with_per_s": rates[1], "ratio": ratio, "failures": counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    add_output(parser, "rewards")
    arguments = parser.parse_args()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rewards.py").write_text(REWARDS)
        rows = [run_async(compare(kind, Path(folder), arguments)) for kind in ("waits", "computes")]
    report = {
        "what": "rewards per second with hanging answers, compared with none in the same run",
        "reward_s": REWARD_S,
        "hanging": HANGING,
        "timeout_s": TIMEOUT_S,
        "retries": RETRIES,
        "processes": arguments.processes,
        "aim": AIM,
        "measured": rows,
        "cpus": os.cpu_count(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
    }
    write_report(report, arguments.output)


if __name__ == "__main__":
    main()
