"""Real servers of every installed engine, compared with transformers in one process: tokens per second, time to the
first token, and duration of weight updates.

    python tests/bench/bench_serving.py [--engines embedded vllm sglang] [--in-flight 64 256] [--repeats 5]
                                        [--megabytes 270] [--output build/bench/serving.json]

Generation: 16 tokens of prompt and 64 new ones with log-probabilities, over HTTP, of a tiny model; transformers runs
directly before and after each server, with as many threads. Weights: of a server with a model of --megabytes, by each
transport, compared with a copy of the bytes in memory. It never fails because of a time.
"""

import argparse
import asyncio
import functools
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.process.run_memory import SHARED_MEMORY  # noqa: E402
from areal_like.serving.engines.external.installations import find_installation  # noqa: E402
from areal_like.weights.flat_buckets import flatten  # noqa: E402
from tests.bench import serving_models as models  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402
from tests.support.engine_environments import ENGINES, distribution  # noqa: E402
from tests.support.engine_transports import send_flat  # noqa: E402
from tests.support.engines import LiveServer  # noqa: E402
from tests.support.server_session import ServerSession, group, open_session  # noqa: E402

EXACT = {"min_new_tokens": models.NEW, "max_new_tokens": models.NEW}
TRANSPORTS = ("disk", "collective")
COPIES = 3
COLUMNS = {
    "publish s": "publish_s",
    "stall s": "stall_s",
    "/ copy": "stall_times_copy",
    "to served s": "publish_to_served_s",
    "served/copy": "published_to_served_times_copy",
}


def missing(engine: str) -> str | None:
    """Why an engine cannot be measured here; None if it can."""
    try:
        if engine != "embedded":
            find_installation(distribution(engine), None, Path.cwd())
    except ValueError as none:
        return str(none)
    return None


# Answers.


def measure_answers(engine: str, root: Path, in_flight: list[int], repeats: int) -> dict[str, Any]:
    """Tokens per second at each number of requests in flight, also of transformers; seconds to the first token."""
    for count in in_flight:
        models.generate(models.prompts(count))
    alone = {count: [models.generate(models.prompts(count)) for _ in range(repeats)] for count in in_flight}
    server = LiveServer(engine, root, models=models.tiny)
    began = time.perf_counter()
    try:
        ready_s = server.start()
        taken = asyncio.run(_answer(server, in_flight, repeats, began))
    finally:
        server.close()
    for count in in_flight:
        alone[count] += [models.generate(models.prompts(count)) for _ in range(repeats)]
    result: dict[str, Any] = {"ready_s": ready_s, "first_token_s": taken.pop("first_token_s"), "in_flight": {}}
    for count in in_flight:
        tokens = count * models.NEW
        mine, transformers = median(taken[count]), median(alone[count])
        result["in_flight"][count] = {
            "tokens_per_s": tokens / mine,
            "transformers_tokens_per_s": tokens / transformers,
            "times_transformers": transformers / mine,
            "runs_s": taken[count],
            "transformers_runs_s": alone[count],
        }
    return result


async def _answer(server: LiveServer, in_flight: list[int], repeats: int, began: float) -> dict[Any, Any]:
    async with open_session(server) as one:
        await one.update(1)
        await one.generate(group("first", max_new_tokens=1))
        taken: dict[Any, Any] = {"first_token_s": time.perf_counter() - began}
        for count in in_flight:
            prompts = models.prompts(count)
            await _run_batch(one, prompts, 0)
            taken[count] = [await _run_batch(one, prompts, number) for number in range(1, repeats + 1)]
    return taken


async def _run_batch(one: ServerSession, prompts: list[list[int]], number: int) -> float:
    """Sends all requests at once, each with another seed."""
    groups = [group(f"{number}.{place}", each, 1, 1000 * number + place, **EXACT) for place, each in enumerate(prompts)]
    began = time.perf_counter()
    answers = await one.generate(*groups)
    seconds = time.perf_counter() - began
    assert all(len(samples[0]["token_ids"]) == models.NEW for samples in answers)
    return seconds


# Weights.


def measure_weights(engine: str, root: Path, megabytes: int, repeats: int) -> dict[str, Any]:
    """Weight updates of an idle server."""
    large: Callable[[int], Any] = functools.partial(models.large, megabytes=megabytes)
    server = LiveServer(engine, root, ("actor.dtype=bfloat16",), models=large)
    tensors = [tensor for _, tensor in server.tensors(1)]
    standby = [torch.empty_like(tensor) for tensor in tensors]
    copy_s = [_copied(tensors, standby) for _ in range(COPIES + 1)][1:]
    result: dict[str, Any] = {"num_bytes": sum(tensor.nbytes for tensor in tensors), "copy_s": median(copy_s)}
    try:
        server.start()
        for transport in TRANSPORTS:
            rows = asyncio.run(_update(server, transport, root, repeats))[1:]
            result[transport] = _summary(rows, result["copy_s"])
    finally:
        server.close()
    return result


def _copied(tensors: list[torch.Tensor], standby: list[torch.Tensor]) -> float:
    began = time.perf_counter()
    for source, to in zip(tensors, standby, strict=True):
        to.copy_(source)
    return time.perf_counter() - began


async def _update(server: LiveServer, transport: str, root: Path, repeats: int) -> list[dict[str, float]]:
    """Each row: seconds to publish, seconds from then until served, and the times in the server's answer."""
    memory = server.run.memory if SHARED_MEMORY.is_dir() else root
    rows: list[dict[str, float]] = []
    buffer = None
    async with open_session(server) as one:
        for number in range(repeats + 1):
            seed = 1 + number % 2
            probe = server.probe(seed)
            began = time.perf_counter()
            if transport == "disk":
                body = server.published(seed, root=memory)
                published = time.perf_counter()
                answer = await one.post("/control/update_weights", body, 300)
            else:
                version = server.next_version()
                flat = buffer = flatten(version, server.tensors(seed), probe, server.run.run_id, buffer)
                published = time.perf_counter()
                answer = await send_flat(one, flat)
            served = time.perf_counter()
            row = {"publish_s": published - began, "publish_to_served_s": served - published}
            rows.append(row | {"stall_s": answer["stall_s"], "load_s": answer["load_s"]})
    return rows


def _summary(rows: list[dict[str, float]], copy_s: float) -> dict[str, Any]:
    medians: dict[str, Any] = {name: median(row[name] for row in rows) for name in rows[0]}
    medians["stall_times_copy"] = medians["stall_s"] / copy_s
    medians["published_to_served_times_copy"] = medians["publish_to_served_s"] / copy_s
    return {**medians, "runs": rows}


# The report.


def table(results: dict[str, Any]) -> str:
    lines = [f"{'':<12}{'in flight':>10}{'tokens/s':>10}{'transformers':>14}{'ratio':>8}"]
    for engine, row in results["answers"].items():
        for count, each in row["in_flight"].items():
            numbers = f"{each['tokens_per_s']:>10.0f}{each['transformers_tokens_per_s']:>14.0f}"
            lines.append(f"{engine:<12}{count:>10}{numbers}{each['times_transformers']:>8.2f}")
    for engine, row in results["answers"].items():
        lines.append(f"{engine}: ready after {row['ready_s']:.1f} s, first token after {row['first_token_s']:.1f} s")
    lines += ["", f"{'weights':<24}" + "".join(f"{word:>13}" for word in COLUMNS)]
    for engine, row in results["weights"].items():
        for transport in TRANSPORTS:
            each = row[transport]
            times = [each[name] for name in COLUMNS.values()]
            lines.append(f"{engine + ', ' + transport:<24}" + "".join(f"{number:>13.3f}" for number in times))
        lines.append(f"  {row['num_bytes'] / 1e6:.0f} MB; a copy in memory takes {row['copy_s']:.3f} s")
    lines += [f"{engine}: left out: {reason}" for engine, reason in results["left_out"].items()]
    lines.append(f"load {results['load_average'][0]:.1f} on {results['cpu_count']} cores")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES, help="engines to measure")
    parser.add_argument("--in-flight", nargs="+", type=int, default=[64, 256], help="concurrent requests")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions; the median is reported")
    parser.add_argument("--megabytes", type=int, default=270, help="size of the weights that are updated")
    add_output(parser, "serving")
    arguments = parser.parse_args()
    if min(arguments.repeats, arguments.megabytes, *arguments.in_flight) < 1:
        parser.error("--repeats, --megabytes, --in-flight: at least 1")
    torch.set_num_threads(1)
    left_out = {engine: reason for engine in arguments.engines if (reason := missing(engine))}
    results: dict[str, Any] = {
        **{"python": platform.python_version(), "torch": torch.__version__, "cpu_count": os.cpu_count()},
        **{"load_average": os.getloadavg(), "prompt": models.PROMPT, "new": models.NEW, "left_out": left_out},
        **{"answers": {}, "weights": {}},
    }
    with tempfile.TemporaryDirectory(prefix="bench-serving-") as name:
        for engine in arguments.engines:
            if engine in left_out:
                continue
            print(f"{engine} ...", flush=True)
            results["answers"][engine] = measure_answers(
                engine, Path(name) / engine, arguments.in_flight, arguments.repeats
            )
            results["weights"][engine] = measure_weights(
                engine, Path(name) / f"{engine}-large", arguments.megabytes, arguments.repeats
            )
    print(table(results))
    write_report(results, arguments.output)


if __name__ == "__main__":
    main()
